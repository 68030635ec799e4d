"""The choice of the policy that answers: graphs, bandits, open episodes."""
