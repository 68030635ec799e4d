"""Replay memories, which keep experience until it is learned from."""

# ruff: noqa: F401
from steppe.memories.checkpoint import compact, restore
from steppe.memories.demonstrations import DemonstratedReplay, DemonstratedState
from steppe.memories.frames import Frames, frames_for
from steppe.memories.replay import Following, Replay, ReplayState, Sample, Timesteps, stored_dtype
