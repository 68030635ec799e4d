"""Connections between programs of Steppe's: frames, greetings, tokens, TLS and limits."""
