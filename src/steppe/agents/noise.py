"""Noise on continuous actions: independent from timestep to timestep, or drifting."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.agents._base import Internals
from steppe.specs.exploration import GaussianNoise, Noise, OrnsteinUhlenbeck

DRIFT = "drift"


def initial_noise(exploration: Noise, lead: tuple[int, ...], size: int) -> Internals:
    """Where drifting noise starts in each episode: [*lead, size]."""
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return {}
    return {DRIFT: np.full((*lead, size), exploration.mu, np.float32)}


def drift(exploration: Noise, noise: Any, internals: Internals, xp: Any) -> tuple[Any, Internals]:
    """The noise [N, columns] with its first columns shifted, or replaced by where the drift has got to."""
    if noise is None:
        return None, internals
    if isinstance(exploration, GaussianNoise) and exploration.mu and exploration.sigma:
        return noise + exploration.mu / exploration.sigma, internals
    if not isinstance(exploration, OrnsteinUhlenbeck):
        return noise, internals
    before = internals[DRIFT]
    size = before.shape[-1]
    now = before + exploration.theta * (exploration.mu - before) + exploration.sigma * noise[..., :size]
    return xp.concatenate([now, noise[..., size:]], -1), internals | {DRIFT: now}


def exploration_of(exploration: Noise, timestep: Any, xp: Any) -> dict[str, Any]:
    """`epsilon` and `sigma` for `heads.sample`; drifting noise has its size already."""
    match exploration:
        case GaussianNoise():
            return {"epsilon": 0.0, "sigma": exploration.sigma}
        case OrnsteinUhlenbeck():
            return {"epsilon": 0.0, "sigma": 1.0}
        case _:
            return {"epsilon": exploration.epsilon(timestep, xp), "sigma": 0.0}
