"""The output of commands: text, tables, progress."""
