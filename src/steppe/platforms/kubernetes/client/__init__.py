"""What a client asks of a cluster, and sees of it."""
