"""Where experience is kept until it is learned from."""

from steppe.memories.checkpoint import held, put_back
from steppe.memories.demonstrations import DemonstratedReplay, DemonstratedState
from steppe.memories.frames import Frames, frames_for
from steppe.memories.replay import Following, Replay, ReplayState, Sample, Timesteps, stored_dtype

__all__ = [
    "DemonstratedReplay",
    "DemonstratedState",
    "Following",
    "Frames",
    "Replay",
    "ReplayState",
    "Sample",
    "Timesteps",
    "frames_for",
    "held",
    "put_back",
    "stored_dtype",
]
