"""Plays whole episodes with a policy: evaluations, recordings, films."""
