"""gymnasium environments stepped in NumPy, learning in one compiled call for each rollout."""
