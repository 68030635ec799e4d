"""Describes the fields of spec files for people and editors."""
