"""Finds what is wrong with an environment before anything is trained in it."""
