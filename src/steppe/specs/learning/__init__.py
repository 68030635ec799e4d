"""Specs of agents, networks, optimisers, exploration and preprocessing."""
