"""The step from a network's outputs to actions, written once for NumPy and JAX (`xp` is numpy or jax.numpy).

| kind              | outputs                         | noise                           | action                    |
|-------------------|---------------------------------|---------------------------------|---------------------------|
| categorical       | logits [..., sum(nvec)]         | Gumbel [..., sum(nvec)]         | [...] or [..., len(nvec)] |
| bernoulli         | logits of yes [..., n]          | logistic [..., n]               | [...] or [..., n]         |
| gaussian          | means [..., A], log_std [A]     | normal [..., A]                 | [..., A], to be clipped   |
| beta              | both concentrations [..., 2A]   | proposals for gammas [..., 16A] | [..., A] within +-1       |
| squashed_gaussian | means, log-deviations [..., 2A] | normal [A], uniform [1+A]       | [..., A] within +-1       |
| deterministic     | before the tanh [..., A]        | normal [A], uniform [1+A]       | [..., A] within +-1       |
| q_values          | values [..., n]                 | uniform [..., 1+n]              | [...]                     |
| random            | none                            | uniform, normal for an open Box | like the space, flat      |
| constant          | the environment's action        | none                            | the same, unchanged       |

If the noise begins or ends with 1 + n uniform numbers, the first of them decides whether to explore (with
probability epsilon), and the others are the random action. Actions within +-1 are scaled to the space's bounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

Noise = tuple[tuple[str, int], ...]
"""The random numbers that an action needs: ("normal", 3) is three columns of a standard normal distribution."""

STRETCHED = ("beta", "squashed_gaussian", "deterministic")
"""Kinds whose actions lie within +-1."""
LOG_STD_RANGE = (-20.0, 2.0)
"""A squashed Gaussian's log-deviations are held within this (Haarnoja et al. 2018)."""
GAMMA_PROPOSALS = 4
"""Each is accepted with probability 0.95 or more, so that all but one in 100,000 draws are exact."""


def greedy(kind: str, outputs: Any, action_space: Space, xp: Any = np) -> Any:
    """The preferred action of each row of outputs, before `postprocess`."""
    match kind:
        case "categorical" | "q_values":
            return best(outputs, action_space, xp)
        case "bernoulli":
            return _yes(outputs, action_space)
        case "deterministic":
            return xp.tanh(outputs)
        case "squashed_gaussian":
            return xp.tanh(outputs[..., : outputs.shape[-1] // 2])
        case "beta":
            alpha, beta = concentrations(outputs, xp)
            return 2.0 * alpha / (alpha + beta) - 1.0
    return outputs


def sample(
    kind: str,
    outputs: Any,
    noise: Any,
    action_space: Space,
    xp: Any = np,
    *,
    log_std: Any = 0.0,
    epsilon: Any = 0.0,
    sigma: Any = 0.0,
) -> Any:
    """A sampled action for each row of outputs, before `postprocess`; all randomness comes from `noise`.

    `epsilon` is the share of uniformly random actions, `sigma` the deviation of the noise on deterministic ones.
    """
    match kind:
        case "categorical":
            # The Gumbel-max trick: samples from the softmax without computing it.
            return best(outputs + noise, action_space, xp)
        case "bernoulli":
            return _yes(outputs + noise, action_space)
        case "gaussian":
            return outputs + xp.exp(log_std) * noise
        case "beta":
            return _draw_beta(outputs, noise, xp)
        case "squashed_gaussian":
            size = outputs.shape[-1] // 2
            spread = xp.exp(xp.clip(outputs[..., size:], *LOG_STD_RANGE))
            drawn = xp.tanh(outputs[..., :size] + spread * noise[..., :size])
            return _explore(drawn, noise[..., size:], epsilon, xp)
        case "deterministic":
            size = outputs.shape[-1]
            drawn = xp.clip(xp.tanh(outputs) + sigma * noise[..., :size], -1.0, 1.0)
            return _explore(drawn, noise[..., size:], epsilon, xp)
        case "q_values":
            explored = best(noise[..., 1:], action_space, xp)
            explores = noise[..., :1] if isinstance(action_space, MultiDiscrete) else noise[..., 0]
            return xp.where(explores < epsilon, explored, best(outputs, action_space, xp))
        case "random" if isinstance(action_space, Box):
            if not action_space.is_bounded:
                return noise
            low, high = (bound.ravel() for bound in action_space.bounds())
            if np.issubdtype(np.dtype(action_space.dtype), np.integer):
                return xp.floor(low + noise * (high - low + 1))
            return low + noise * (high - low)
        case "random":
            return best(noise, action_space, xp)
    return outputs


def postprocess(kind: str, action: Any, action_space: Space, xp: Any = np) -> Any:
    """Actions as the environment takes them: a Box in its shape and bounds, a Discrete counted from its start."""
    if isinstance(action_space, Discrete):
        action = action.astype(np.int32)
        return action + action_space.start if action_space.start else action
    if isinstance(action_space, MultiDiscrete):
        return action.astype(np.int32)
    bounds = _flat_bounds(action_space)
    if kind in STRETCHED and bounds is not None:
        low, high = bounds
        action = low + (action + 1.0) * (0.5 * (high - low))
    if bounds is not None:
        action = xp.clip(action, *bounds)
    if np.issubdtype(np.dtype(action_space.dtype), np.integer):
        action = xp.rint(action).astype(action_space.dtype)
    elif xp is np:
        # JAX keeps float32, since float64 is off by default; actions are cast before an environment gets them.
        action = action.astype(action_space.dtype, copy=False)
    return action.reshape(action.shape[:-1] + action_space.shape)


def outputs_size(kind: str, action_space: Space) -> int:
    """The number of outputs of a head of this kind for this space."""
    if kind == "random":
        return 0
    if isinstance(action_space, Box):
        return action_space.size * (2 if kind in ("beta", "squashed_gaussian") else 1)
    nvec = action_space.nvec if isinstance(action_space, MultiDiscrete) else (action_space.n,)
    return len(nvec) if kind in ("constant", "bernoulli") else sum(nvec)


def noise_of(kind: str, action_space: Space) -> Noise:
    """The random numbers that `sample` needs for one action."""
    outputs = outputs_size(kind, action_space)
    match kind:
        case "categorical":
            return (("gumbel", outputs),)
        case "bernoulli":
            return (("logistic", outputs),)
        case "gaussian":
            return (("normal", outputs),)
        case "beta":
            return (("normal", outputs * GAMMA_PROPOSALS), ("uniform", outputs * GAMMA_PROPOSALS))
        case "squashed_gaussian" | "deterministic":
            size = outputs_size("gaussian", action_space)
            return (("normal", size), ("uniform", 1 + size))
        case "q_values":
            return (("uniform", 1 + outputs),)
        case "random" if isinstance(action_space, Box):
            return (("uniform" if action_space.is_bounded else "normal", action_space.size),)
        case "random":
            return (("uniform", outputs_size("categorical", action_space)),)
    return (("uniform", 0),)


def draw_noise(noise: Noise, lead: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """The random numbers that `sample` needs, [*lead, columns] float32, drawn by NumPy."""
    parts = [_draw(distribution, (*lead, columns), rng) for distribution, columns in noise]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, -1)


def concentrations(outputs: Any, xp: Any = np) -> tuple[Any, Any]:
    """(alpha, beta), each [..., A] and above 1, so that the density has one peak (Chou et al. 2017)."""
    positive = 1.0 + xp.logaddexp(outputs, np.float32(0.0))
    size = outputs.shape[-1] // 2
    return positive[..., :size], positive[..., size:]


def _draw(distribution: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    match distribution:
        case "gumbel":
            # The logarithm of an exponential variable, negated, is Gumbel-distributed.
            return -np.log(rng.standard_exponential(shape, np.float32) + np.float32(1e-30))
        case "logistic":
            uniform = np.clip(rng.random(shape, np.float32), 1e-7, 1 - 1e-7)
            return np.log(uniform) - np.log1p(-uniform)
        case "normal":
            return rng.standard_normal(shape, np.float32)
        case _:
            return rng.random(shape, np.float32)


def _explore(action: Any, uniform: Any, epsilon: Any, xp: Any) -> Any:
    """A uniformly random action within +-1 with probability epsilon."""
    return xp.where(uniform[..., :1] < epsilon, 2.0 * uniform[..., 1:] - 1.0, action)


def _draw_beta(outputs: Any, noise: Any, xp: Any) -> Any:
    """A Beta variate is X / (X + Y) for gamma variates X and Y."""
    alpha, beta = concentrations(outputs, xp)
    shapes = xp.concatenate([alpha, beta], -1)
    proposals = noise.reshape((*noise.shape[:-1], 2, GAMMA_PROPOSALS, shapes.shape[-1]))
    gammas = _draw_gamma(shapes, proposals[..., 0, :, :], proposals[..., 1, :, :], xp)
    size = alpha.shape[-1]
    return 2.0 * gammas[..., :size] / (gammas[..., :size] + gammas[..., size:]) - 1.0


def _draw_gamma(shape: Any, normal: Any, uniform: Any, xp: Any) -> Any:
    """The first accepted proposal of Marsaglia and Tsang (2000): [..., K], proposals [..., P, K] -> [..., K]."""
    d = shape - 1.0 / 3.0
    c = 1.0 / xp.sqrt(9.0 * d)
    drawn = d
    for index in reversed(range(GAMMA_PROPOSALS)):
        x, u = normal[..., index, :], uniform[..., index, :]
        v = (1.0 + c * x) ** 3
        safe = xp.maximum(v, 1e-8)
        accepted = (v > 0) & (xp.log(u + 1e-30) < 0.5 * x**2 + d - d * safe + d * xp.log(safe))
        drawn = xp.where(accepted, d * safe, drawn)
    return drawn


def _yes(scores: Any, space: Space) -> Any:
    """Whether each score [..., n] is positive; a Discrete of two is a single yes or no [...]."""
    chosen = (scores > 0).astype(np.int32)
    return chosen[..., 0] if isinstance(space, Discrete) else chosen


def best(scores: Any, space: Space, xp: Any) -> Any:
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
    """(low, high), each [A]; None if the space has no bounds."""
    low, high = (bound.ravel() for bound in space.bounds())
    return (low, high) if np.isfinite([low, high]).any() else None
