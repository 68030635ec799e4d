"""The learner's process: receives batches of timesteps from workers, learns, and hands out the newest policy."""
