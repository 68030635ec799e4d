"""Networks from lists of layers, in JAX."""

from steppe.networks.initial import head
from steppe.networks.torso import Network, apply_head, default_layers

__all__ = ["Network", "apply_head", "default_layers", "head"]
