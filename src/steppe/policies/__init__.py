"""Policies: what turns an observation into an action, in NumPy alone, and the files they are kept in."""
