"""The engines: how timesteps are collected and learned from, a folder for each run mode."""
