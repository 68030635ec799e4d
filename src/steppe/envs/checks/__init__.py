"""Checks of an environment before training."""
