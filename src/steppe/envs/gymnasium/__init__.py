"""Gymnasium environments: their construction, wrappers, and several of them stepped together."""
