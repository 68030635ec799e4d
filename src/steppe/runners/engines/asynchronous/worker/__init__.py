"""A worker: acts in its environments by the learner's newest policy, and sends what it saw."""
