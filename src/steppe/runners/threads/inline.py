"""Keeps a small program in the thread that calls it.

XLA's CPU runtime hands operations to worker threads of its own as soon as more than eight of them could run. For
operations of a microsecond that costs more than it brings, the more so when every core has a worker of ours already. A
program stays in its thread when few operations are ready at a time: so what a rollout carries and records is packed
into one array each, and parts that do not depend on each other are put behind conditions, where they run by themselves.
None of this changes what is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Acting, Agent
from steppe.agents.layout import Layout
from steppe.runners.rollout import Rollout

MOST_WORDS = 256
"""Environments of larger states and observations are not packed: copying them would cost more."""
WORDS = {np.dtype(name) for name in ("float32", "int32", "uint32", "bool")}


def inlined(rollout: Rollout, acting: Acting, flag: Array) -> Rollout:
    """The same rollout as a program of few independent operations; `flag` is true, but only a run can tell."""
    narrow = copy.copy(rollout)
    narrow.agent = _with_parameters_cut(rollout.agent, acting, flag)
    narrow.env = _Apart(rollout.env, flag)  # type: ignore[assignment]
    narrow.scan = packed_scan  # type: ignore[method-assign]
    return narrow


def apart(flag: Array, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), as a part of the program that is run by itself."""
    shapes = jax.eval_shape(function, *arguments)

    def nothing(*_: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(flag, function, nothing, *arguments)


def packed_scan(function: Callable[..., Any], start: Any, inputs: Any) -> tuple[Any, Any]:
    """`jax.lax.scan`, with all that N environments carry in one array, and all that is recorded in another.

    Leaves of `start` and of what is recorded are [N, ...] or, for whatever is not of environments, of any shape.
    """
    number = _environments(start)
    carried, structure = jax.tree.flatten(start)
    carry_rows = _Rows(carried, number)
    shapes = jax.eval_shape(lambda: function(start, jax.tree.map(lambda leaf: leaf[0], inputs))[1])
    recorded, recorded_structure = jax.tree.flatten(shapes)
    record_rows = _Rows(recorded, number)
    if carry_rows.words + record_rows.words > MOST_WORDS:
        return jax.lax.scan(function, start, inputs)

    def step(packed: Any, at: Any) -> tuple[Any, Any]:
        carry, record = function(jax.tree.unflatten(structure, carry_rows.unpack(packed)), at)
        return carry_rows.pack(jax.tree.leaves(carry)), record_rows.pack(jax.tree.leaves(record))

    packed, records = jax.lax.scan(step, carry_rows.pack(carried), inputs)
    leaves = jax.vmap(record_rows.unpack)(records)
    return jax.tree.unflatten(structure, carry_rows.unpack(packed)), jax.tree.unflatten(recorded_structure, leaves)


class _Rows:
    """How leaves [N, ...] become rows of one array [words, N]; others stay as they are."""

    def __init__(self, leaves: list[Any], number: int) -> None:
        self._number = number
        self._leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self._fits = [
            leaf.ndim > 0 and leaf.shape[0] == number and leaf.dtype in WORDS and leaf.size > 0 for leaf in self._leaves
        ]
        self.words = sum(leaf.size // number for leaf, fits in zip(self._leaves, self._fits, strict=True) if fits)

    def pack(self, leaves: list[Any]) -> tuple[Array, list[Any]]:
        rows = [_words(leaf).reshape(self._number, -1).T for leaf, fits in zip(leaves, self._fits, strict=True) if fits]
        packed = jnp.concatenate(rows) if rows else jnp.zeros((0, self._number), jnp.uint32)
        return packed, [leaf for leaf, fits in zip(leaves, self._fits, strict=True) if not fits]

    def unpack(self, packed: tuple[Array, list[Any]]) -> list[Any]:
        rows, others = packed
        rest, leaves, at = iter(others), [], 0
        for leaf, fits in zip(self._leaves, self._fits, strict=True):
            if not fits:
                leaves.append(next(rest))
                continue
            count = leaf.size // self._number
            part = rows[at : at + count].T.reshape(leaf.shape)
            leaves.append(part != 0 if leaf.dtype == bool else jax.lax.bitcast_convert_type(part, leaf.dtype))
            at += count
        return leaves


class _Apart:
    """An environment whose random starts are drawn apart, and whose successors are worked out once for all uses."""

    def __init__(self, env: Any, flag: Array) -> None:
        self._env, self._flag = env, flag
        self.max_episode_steps = env.max_episode_steps
        self.observe = env.observe

    def reset(self, key: Array) -> Any:
        return apart(self._flag, lambda data: self._env.reset(jax.random.wrap_key_data(data)), jax.random.key_data(key))

    def step(self, state: Any, action: Any) -> Any:
        return jax.lax.optimization_barrier(self._env.step(state, action))


class _CutLayout:
    """A layout that has cut one vector already: cutting it again in every timestep would copy it every time."""

    def __init__(self, layout: Layout, vector: Array) -> None:
        self._layout, self._vector, self._parts = layout, vector, layout.split(vector)

    def split(self, vector: Array) -> dict[str, Any]:
        return self._parts if vector is self._vector else self._layout.split(vector)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)


def _with_parameters_cut(agent: Agent[Any], acting: Acting, flag: Array) -> Agent[Any]:
    """The same agent, whose parameters are cut and whose noise is drawn outside of the loop over timesteps."""
    ready: Any = copy.copy(agent)
    if hasattr(agent, "layout"):
        ready.layout = _CutLayout(agent.layout, acting.params)

    def draw_noise(key: Array, shape: tuple[int, ...]) -> Array:
        return apart(
            flag, lambda data: agent.draw_noise(jax.random.wrap_key_data(data), shape), jax.random.key_data(key)
        )

    ready.draw_noise = draw_noise
    return ready


def _environments(start: Any) -> int:
    """How many there are: N of an `Envs`."""
    return start.lengths.shape[0]


def _words(leaf: Array) -> Array:
    return leaf.astype(jnp.uint32) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, jnp.uint32)
