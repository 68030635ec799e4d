"""Destinations of a run's metrics: JSON lines, and TensorBoard's event files."""
