"""Experiments on clusters."""
