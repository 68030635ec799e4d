"""Environments: compiled ones (`registry.make_compiled`), and any of gymnasium's (`gymnasium.vector`)."""
