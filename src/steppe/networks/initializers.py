"""Initial parameters, drawn by NumPy.

XLA takes 1.4 s to compile the QR decompositions of one small network (0.3 s from its cache); NumPy needs a millisecond.
Without a generator the arrays are zeros, for callers that need their shapes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from steppe.policies.custom_layers import draw_module, nested
from steppe.policies.layers import LayerPlan
from steppe.specs.learning.network import RECURRENT, Custom

HostParams = dict[str, dict[str, Any]]
Generator = np.random.Generator


def layers(rng: Generator | None, steps: Sequence[LayerPlan], kernel_init: str) -> HostParams:
    """{step name: {parameter name: array}} for the steps that have parameters."""
    return {step.name: _layer(rng, step, kernel_init) for step in steps if step.parameters}


def head(rng: Generator | None, features: int, outputs: int, scale: float) -> dict[str, np.ndarray]:
    """An output layer: kernel [features, outputs], orthogonal times `scale`, and a bias of zeros [outputs]."""
    return {"kernel": orthogonal(rng, (features, outputs), scale), "bias": np.zeros(outputs, np.float32)}


def orthogonal(rng: Generator | None, shape: tuple[int, ...], gain: float) -> np.ndarray:
    """A kernel whose columns (or rows, if they are fewer) are orthogonal with length `gain` (Saxe et al. 2013)."""
    if rng is None:
        return np.zeros(shape, np.float32)
    rows, columns = prod(shape[:-1]), shape[-1]
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    # Without the signs of R's diagonal the draw is not uniform over orthogonal matrices (Mezzadri 2007).
    q = q * np.where(np.diag(r) < 0, -gain, gain)
    return np.ascontiguousarray(q if rows >= columns else q.T, np.float32).reshape(shape)


def _layer(rng: Generator | None, step: LayerPlan, kernel_init: str) -> dict[str, Any]:
    if isinstance(step.layer, Custom):
        if rng is None:
            return nested({name: np.zeros(shape, np.float32) for name, shape in step.parameters})
        return draw_module(step.layer, step.input, rng)
    if step.layer.type in RECURRENT:
        return _recurrent(rng, step, kernel_init)
    return {name: _parameter(rng, name, shape, kernel_init) for name, shape in step.parameters}


def _parameter(rng: Generator | None, name: str, shape: tuple[int, ...], kernel_init: str) -> np.ndarray:
    if name in ("scale", "beta"):
        return np.ones(shape, np.float32)
    if rng is None:
        return np.zeros(shape, np.float32)
    match name:
        case "kernel" | "skip_kernel" if kernel_init == "orthogonal":
            return orthogonal(rng, shape, sqrt(2.0))
        case "kernel" | "skip_kernel":
            return _lecun(rng, shape, prod(shape[:-1]))
        case "embedding":
            return _lecun(rng, shape, shape[-1])
        case _:
            return np.zeros(shape, np.float32)


def _lecun(rng: Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / np.float32(sqrt(fan_in))


def _recurrent(rng: Generator | None, step: LayerPlan, kernel_init: str) -> dict[str, np.ndarray]:
    """The parameters of an lstm or gru, whose gates are drawn separately."""
    params = {name: np.zeros(shape, np.float32) for name, shape in step.parameters}
    if rng is None:
        return params
    size = step.output[-1]
    for name in ("kernel", "recurrent_kernel"):
        rows, columns = params[name].shape
        is_orthogonal = name == "recurrent_kernel" or kernel_init == "orthogonal"
        shapes = [(rows, size)] * (columns // size)
        draw = partial(orthogonal, gain=1.0) if is_orthogonal else partial(_lecun, fan_in=rows)
        params[name] = np.concatenate([draw(rng, shape) for shape in shapes], axis=1)
    if step.layer.type != "gru":
        # A forget gate that starts open helps to learn long dependencies (Jozefowicz et al. 2015).
        params["bias"][size : 2 * size] = 1.0
    return params
