"""Clusters: how each provider makes, finds and deletes them, and which ones Steppe knows."""
