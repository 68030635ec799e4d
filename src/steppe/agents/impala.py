"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561): an actor-critic that corrects for policies older than itself."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from steppe.agents._base import TrainState, Trajectory
from steppe.agents.core import normalizers
from steppe.agents.core.advantages import vtrace
from steppe.agents.core.policy_value_networks import PolicyBatch
from steppe.agents.vpg import VPG, VPGSettings
from steppe.specs._base import Count, Positive, Unit


class IMPALASettings(VPGSettings):
    """Settings of `impala`."""

    horizon: Count = 20
    """How many timesteps each environment takes between two updates."""
    gae_lambda: Unit = 1.0
    """How far corrections look ahead: 0 is one step, 1 is the whole trajectory."""
    ratio_clip: Positive = 1.0
    """The upper bound of the importance ratios (rho bar)."""


class IMPALA(VPG):
    """One step for each trajectory, with V-trace targets."""

    type = "impala"
    Settings: ClassVar = IMPALASettings
    settings: IMPALASettings  # type: ignore[assignment]

    def prepare(self, state: TrainState, trajectory: Trajectory) -> PolicyBatch:
        """V-trace targets and advantages of the newest policy, for the actions of an older one."""
        settings = self.settings
        values, next_values = self.trajectory_values(state, trajectory)
        behaviour = self.behaviour_log_probs(state, trajectory)
        rewards = trajectory.rewards
        if self.context.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        targets, advantages = vtrace(
            rewards,
            values,
            next_values,
            trajectory.terminated.astype(jnp.float32),
            trajectory.truncated.astype(jnp.float32),
            jax.lax.stop_gradient(self.current_log_probs(state, trajectory) - behaviour),
            settings.discount,
            settings.gae_lambda,
            settings.ratio_clip,
        )
        return self.batch_of(trajectory, behaviour, advantages, targets)
