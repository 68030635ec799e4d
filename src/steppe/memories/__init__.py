"""Where experience is kept until it is learned from."""

from steppe.memories.demonstrations import DemonstratedReplay, DemonstratedState
from steppe.memories.replay import Following, Replay, ReplayState, Sample, Timesteps

__all__ = ["DemonstratedReplay", "DemonstratedState", "Following", "Replay", "ReplayState", "Sample", "Timesteps"]
