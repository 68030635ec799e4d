"""How a network's outputs become actions, written once for NumPy and JAX (`xp` is numpy or jax.numpy).

| kind        | outputs                       | noise                                     | action                    |
|-------------|-------------------------------|-------------------------------------------|---------------------------|
| categorical | logits [..., sum(nvec)]       | Gumbel [..., sum(nvec)]                   | [...] or [..., len(nvec)] |
| gaussian    | means [..., A], log_std [A]   | standard normal [..., A]                  | [..., A], not yet clipped |
| q_values    | values [..., n]               | uniform [..., 1 + n]: explore?, which one | [...]                     |
| random      | none                          | uniform, or normal for an unbounded Box   | like the space, flat      |
| constant    | what the environment takes    | none                                      | the same, as it is        |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

HeadKind = Literal["categorical", "gaussian", "q_values", "random", "constant"]


def greedy(kind: str, outputs: Any, action_space: Space, xp: Any = np) -> Any:
    """The preferred action of each row of outputs, before `postprocess`; of a random head the first or the middle."""
    if kind in ("categorical", "q_values"):
        return _best(outputs, action_space, xp)
    if kind == "random":
        level = 0.0 if isinstance(action_space, Box) and not action_space.is_bounded else 0.5
        noise = xp.full((*outputs.shape[:-1], _random_size(action_space)), level, np.float32)
        return sample(kind, outputs, noise, action_space, xp)
    return outputs


def sample(
    kind: str, outputs: Any, noise: Any, action_space: Space, xp: Any = np, *, log_std: Any = 0.0, epsilon: Any = 0.0
) -> Any:
    """A drawn action for each row of outputs, before `postprocess`; all the randomness is in `noise`."""
    match kind:
        case "categorical":
            # Adding Gumbel noise and taking the largest draws from the softmax, without computing it.
            return _best(outputs + noise, action_space, xp)
        case "gaussian":
            return outputs + xp.exp(log_std) * noise
        case "q_values":
            explored = _best(noise[..., 1:], action_space, xp)
            return xp.where(noise[..., 0] < epsilon, explored, _best(outputs, action_space, xp))
        case "random" if isinstance(action_space, Box):
            if not action_space.is_bounded:
                return noise
            low, high = (bound.ravel() for bound in action_space.bounds())
            if np.issubdtype(np.dtype(action_space.dtype), np.integer):
                return xp.floor(low + noise * (high - low + 1))
            return low + noise * (high - low)
        case "random":
            return _best(noise, action_space, xp)
    return outputs


def postprocess(action: Any, action_space: Space, xp: Any = np) -> Any:
    """What the environment takes: a Box in its shape and within its bounds, a Discrete counted from its start."""
    if isinstance(action_space, Discrete):
        action = action.astype(np.int32)
        return action + action_space.start if action_space.start else action
    if isinstance(action_space, MultiDiscrete):
        return action.astype(np.int32)
    if (bounds := _flat_bounds(action_space)) is not None:
        action = xp.clip(action, *bounds)
    if np.issubdtype(np.dtype(action_space.dtype), np.integer):
        action = xp.rint(action).astype(action_space.dtype)
    elif xp is np:
        # JAX keeps float32: float64 is off by default, and the host casts what it hands to an environment.
        action = action.astype(action_space.dtype, copy=False)
    return action.reshape(action.shape[:-1] + action_space.shape)


def outputs_size(kind: str, action_space: Space) -> int:
    """How many outputs a head of this kind has for this space."""
    if kind == "random":
        return 0
    match action_space:
        case Discrete():
            return 1 if kind == "constant" else action_space.n
        case MultiDiscrete():
            return len(action_space.nvec) if kind == "constant" else sum(action_space.nvec)
        case Box():
            return action_space.size


def draw_noise(kind: str, action_space: Space, lead: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """The noise `sample` wants, [*lead, columns] float32, drawn by NumPy."""
    match kind:
        case "categorical":
            # The logarithm of an exponential variable, negated, is Gumbel-distributed.
            exponential = rng.standard_exponential((*lead, outputs_size(kind, action_space)), np.float32)
            return -np.log(exponential + np.float32(1e-30))
        case "gaussian":
            return rng.standard_normal((*lead, outputs_size(kind, action_space)), np.float32)
        case "q_values":
            return rng.random((*lead, 1 + outputs_size(kind, action_space)), np.float32)
        case "random":
            is_unbounded = isinstance(action_space, Box) and not action_space.is_bounded
            draw = rng.standard_normal if is_unbounded else rng.random
            return draw((*lead, _random_size(action_space)), np.float32)
    return np.zeros((*lead, 0), np.float32)


def _random_size(action_space: Space) -> int:
    """How many random numbers one action of a random head takes."""
    return action_space.size if isinstance(action_space, Box) else outputs_size("categorical", action_space)


def _best(scores: Any, space: Space, xp: Any) -> Any:
    """The index of the largest score of each choice: [..., n] -> [...], [..., sum(nvec)] -> [..., len(nvec)]."""
    if not isinstance(space, MultiDiscrete):
        return scores.argmax(-1)
    nvec = space.nvec
    if len(set(nvec)) == 1:
        return scores.reshape((*scores.shape[:-1], len(nvec), nvec[0])).argmax(-1)
    ends = np.cumsum(nvec).tolist()
    return xp.stack([scores[..., end - n : end].argmax(-1) for n, end in zip(nvec, ends, strict=True)], axis=-1)


@lru_cache(maxsize=64)
def _flat_bounds(space: Box) -> tuple[np.ndarray, np.ndarray] | None:
    """(low, high), each [A]; None when there is nothing to clip."""
    low, high = (bound.ravel() for bound in space.bounds())
    return (low, high) if np.isfinite([low, high]).any() else None
