"""Noise on continuous actions: independent from timestep to timestep, or drifting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.specs.learning.exploration import GaussianNoise, Noise, OrnsteinUhlenbeck

if TYPE_CHECKING:
    # Not needed to run: who only acts has no use for JAX.
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
