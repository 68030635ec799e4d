"""Steppe: reinforcement-learning experiments at any size."""
