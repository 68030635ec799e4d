"""The protocol between a learner and its workers."""
