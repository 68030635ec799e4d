"""The learner: takes in what workers send, and hands out the newest policy."""
