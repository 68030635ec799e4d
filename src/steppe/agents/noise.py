"""Noise on continuous actions: independent from timestep to timestep, or drifting."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.agents._base import Agent, Internals
from steppe.specs.exploration import GaussianNoise, Noise, OrnsteinUhlenbeck

DRIFT = "drift"


class ActsWithNoise(Agent[Any]):
    """What agents share whose actions are certain but for the noise that they explore with."""

    action_size: int

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The drifting noise, where there is any."""
        return initial_noise(self.settings.exploration, lead, self.action_size)

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """The best action, and noise that may drift."""
        noise, internals = drift(self.settings.exploration, noise, internals, self.action_size, xp)
        actions, _ = super().choose(outputs, noise, timestep, internals, log_std, xp)
        return actions, internals

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """Anything goes until learning starts; then as set."""
        own = exploration_of(self.settings.exploration, timestep, xp)
        return own | {"epsilon": xp.where(timestep < self.settings.learning_starts, 1.0, own["epsilon"])}


def initial_noise(exploration: Noise, lead: tuple[int, ...], size: int) -> Internals:
    """Where drifting noise starts in each episode: [*lead, size]."""
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return {}
    return {DRIFT: np.full((*lead, size), exploration.mu, np.float32)}


def drift(exploration: Noise, noise: Any, internals: Internals, size: int, xp: Any) -> tuple[Any, Internals]:
    """The noise [N, columns] with its first `size` columns, standard normal ones, as the exploration has them."""
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
    """`epsilon` and `sigma` for `heads.sample`; noise that went through `drift` has its size already."""
    if isinstance(exploration, GaussianNoise | OrnsteinUhlenbeck):
        return {"epsilon": 0.0, "sigma": 1.0}
    return {"epsilon": exploration.epsilon(timestep, xp), "sigma": 0.0}
