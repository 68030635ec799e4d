"""What goes into an endpoint and comes out of it, whatever the protocol."""
