"""Projects, run folders and the life cycle of an experiment: one state machine, one owner of each state."""
