"""Policies turn observations into actions, in NumPy alone; this package also has the files they are kept in."""
