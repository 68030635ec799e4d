"""The process that trains one experiment."""
