"""Noise on continuous actions: independent from timestep to timestep, or drifting. Workers use it without JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.specs.learning.exploration import GaussianNoise, Noise, OrnsteinUhlenbeck

if TYPE_CHECKING:
    from steppe.agents._base import Internals

DRIFT = "drift"


def initial_noise(exploration: Noise | None, lead: tuple[int, ...], size: int) -> Internals:
    """The initial state of drifting noise in each episode: [*lead, size]."""
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return {}
    return {DRIFT: np.full((*lead, size), exploration.mu, np.float32)}


def drift(exploration: Noise | None, noise: Any, internals: Internals, size: int, xp: Any) -> tuple[Any, Internals]:
    """Replaces the first `size` columns of the noise [N, columns], which are standard normal, by the exploration's
    process."""
    match exploration:
        case _ if noise is None:
            return None, internals
        case GaussianNoise(mu=mu, sigma=sigma):
            now = mu + sigma * noise[..., :size]
        case OrnsteinUhlenbeck(mu=mu, sigma=sigma, theta=theta):
            before = internals[DRIFT]
            now = before + theta * (mu - before) + sigma * noise[..., :size]
            internals = internals | {DRIFT: now}
        case _:
            return noise, internals
    return xp.concatenate([now, noise[..., size:]], -1), internals


def exploration_of(exploration: Noise, timestep: Any, xp: Any) -> dict[str, Any]:
    """`epsilon` and `sigma` for `heads.sample`; noise from `drift` is scaled already."""
    if isinstance(exploration, GaussianNoise | OrnsteinUhlenbeck):
        return {"epsilon": 0.0, "sigma": 1.0}
    return {"epsilon": exploration.epsilon(timestep, xp), "sigma": 0.0}


class DriftingNoise:
    """Mixin of agents that draw actions with noise which may drift from timestep to timestep."""

    action_size: int
    settings: Any

    @property
    def noise_process(self) -> Noise | None:
        """The agent's noise process."""
        raise NotImplementedError

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The state of drifting noise, if there is any."""
        return initial_noise(self.noise_process, lead, self.action_size)

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """The actions with the noise of the process."""
        noise, internals = drift(self.noise_process, noise, internals, self.action_size, xp)
        actions, _ = super().choose(  # type: ignore[misc]
            outputs, noise, timestep, internals, log_std, xp
        )
        return actions, internals


class ActsWithNoise(DriftingNoise):
    """Mixin of agents with a deterministic policy and exploration noise."""

    @property
    def noise_process(self) -> Noise | None:
        """As set; shares of random actions are none."""
        exploration = self.settings.exploration
        return exploration if isinstance(exploration, GaussianNoise | OrnsteinUhlenbeck) else None

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """Uniformly random actions until learning starts; then those of the setting."""
        own = exploration_of(self.settings.exploration, timestep, xp)
        return own | {"epsilon": xp.where(timestep < self.settings.learning_starts, 1.0, own["epsilon"])}
