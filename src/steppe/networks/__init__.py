"""Networks from lists of layers, in JAX."""

from steppe.networks.defaults import default_layers
from steppe.networks.initializers import head
from steppe.networks.torso import Network, State, apply_head

__all__ = ["Network", "State", "apply_head", "default_layers", "head"]
