"""Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783): vanilla policy gradient with the paper's settings."""

from __future__ import annotations

from typing import ClassVar

from steppe.agents.vpg import VPG, VPGSettings
from steppe.specs._base import Count, Positive, Unit


class A2CSettings(VPGSettings):
    """Settings of `a2c` and `a3c`."""

    gae_lambda: Unit = 1.0
    """How far advantages look ahead: 0 is one step, 1 is the whole episode."""
    horizon: Count = 5
    """How many timesteps each environment takes between two updates."""
    learning_rate: Positive = 7e-4
    """The optimiser's step size; may also be written inside `optimizer`."""


class A2C(VPG):
    """Short rollouts, one RMSProp step for each."""

    type = "a2c"
    Settings: ClassVar = A2CSettings


class A3C(A2C):
    """As a2c: short rollouts, one RMSProp step for each; asynchronous in run modes with several workers."""

    type = "a3c"
