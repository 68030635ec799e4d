"""Finds, reads and checks spec files; errors are one sentence."""
