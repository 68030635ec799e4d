"""Command-line input: flags, parsing, completion."""
