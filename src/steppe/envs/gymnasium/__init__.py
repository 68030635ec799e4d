"""Environments of gymnasium's: made, wrapped and stepped together."""
