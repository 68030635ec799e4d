"""Ray for the duration of a run."""
