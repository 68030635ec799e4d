"""Environments in JAX, which are compiled together with the agent."""
