"""Plays environments through an endpoint."""
