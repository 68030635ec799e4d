"""Noise on continuous actions: independent from timestep to timestep, or drifting. Workers use it without JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.specs.learning.exploration import GaussianNoise, Noise, OrnsteinUhlenbeck

if TYPE_CHECKING:
    from steppe.agents._base import Internals

DRIFT = "drift"


def initial_noise(exploration: Noise | None, lead: tuple[int, ...], size: int) -> Internals:
    """Where drifting noise starts in each episode: [*lead, size]."""
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return {}
    return {DRIFT: np.full((*lead, size), exploration.mu, np.float32)}


def drift(exploration: Noise | None, noise: Any, internals: Internals, size: int, xp: Any) -> tuple[Any, Internals]:
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


class DriftingNoise:
    """Agents that draw actions with noise which may drift from timestep to timestep (a mixin)."""

    action_size: int
    settings: Any

    @property
    def noise_process(self) -> Noise | None:
        """Of the agent."""
        raise NotImplementedError

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The drifting noise, where there is any."""
        return initial_noise(self.noise_process, lead, self.action_size)

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """As drawn, after the noise has drifted."""
        noise, internals = drift(self.noise_process, noise, internals, self.action_size, xp)
        actions, _ = super().choose(  # type: ignore[misc]
            outputs, noise, timestep, internals, log_std, xp
        )
        return actions, internals


class ActsWithNoise(DriftingNoise):
    """Agents whose actions are deterministic but for the noise that they explore with (a mixin)."""

    @property
    def noise_process(self) -> Noise | None:
        """As set; shares of random actions are none."""
        exploration = self.settings.exploration
        return exploration if isinstance(exploration, GaussianNoise | OrnsteinUhlenbeck) else None

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """Uniformly random actions until learning starts; then as set."""
        own = exploration_of(self.settings.exploration, timestep, xp)
        return own | {"epsilon": xp.where(timestep < self.settings.learning_starts, 1.0, own["epsilon"])}
