"""Tells people and editors what can be written in a spec file."""
