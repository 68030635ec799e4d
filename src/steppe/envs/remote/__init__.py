"""Environments in another process or on another machine: the client that trains in them, and the server."""
