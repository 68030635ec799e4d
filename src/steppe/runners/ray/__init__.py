"""A Ray for as long as a run needs one."""
