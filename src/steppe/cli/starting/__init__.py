"""From a command to a training that has begun, and watching it."""
