"""The engines: how timesteps are collected and learned from, one folder a run mode."""
