"""Where experience is kept until it is learned from."""

from steppe.memories.replay import Replay, ReplayState, Sample, Timesteps

__all__ = ["Replay", "ReplayState", "Sample", "Timesteps"]
