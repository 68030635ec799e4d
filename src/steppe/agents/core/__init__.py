"""The common parts of the algorithms."""
