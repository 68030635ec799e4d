"""A worker's process: acts in its environments with the learner's newest policy and sends the timesteps."""
