"""Acting, stepping and learning in one compiled program."""
