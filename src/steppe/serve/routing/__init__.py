"""Which policy answers: graphs, bandits, open episodes."""
