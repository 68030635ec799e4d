"""Results in object storage."""
