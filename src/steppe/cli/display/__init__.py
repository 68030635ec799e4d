"""What commands print: text, tables, progress."""
