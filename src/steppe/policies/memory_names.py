"""The names of what a policy remembers beside the states of its network: see `Policy.initial_state`."""

SEEN = "seen/"
"""Before the names of what preprocessing remembers."""
ANYTHING = "anything"
"""Whether an episode has begun: the name of one more part of the state, if preprocessing has one."""
