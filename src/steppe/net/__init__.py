"""Connections between Steppe's programs: frames, greetings, tokens, TLS and limits."""
