"""The learning cores: agents with a memory, agents with trajectories, and policies of the user's own."""
