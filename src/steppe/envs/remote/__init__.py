"""Environments in another process or on another machine: the protocol, the client that trains, the server."""
