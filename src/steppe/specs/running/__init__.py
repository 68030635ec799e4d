"""Specs of run modes, clusters, connections and seeds."""
