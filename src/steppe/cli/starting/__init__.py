"""Starts trainings for commands, and shows their progress."""
