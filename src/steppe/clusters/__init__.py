"""Clusters: one provider a file, each of which makes, finds and deletes them, and the registry of known ones."""
