"""Frames of pictures in a replay memory, each kept once: a ring for every environment, and the start of each stack.

An observation is `count` frames. Within an episode it shares all of them with the successor of the timestep before, and
all but one with its own successor, so each timestep adds one frame. Frames are compared, not assumed to repeat, so
every observation is restored exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Leaf = Any
SPARE = 4
"""There is one spare frame for this many timesteps: it suffices for episodes of `SPARE * count` timesteps or more."""
SMALLEST = 1_024
"""Observations of fewer bytes are kept whole: looking up frames would cost more than it saves."""


class FrameState(NamedTuple):
    """The frames of N environments."""

    ring: Leaf
    """[F, N, *frame], a ring buffer."""
    head: Leaf
    """The next slot to be written [N]."""
    used: Leaf
    """The number of slots before it that rows of the memory still need [N]."""
    latest: Leaf
    """The newest true successors [N, count, *frame]."""


@dataclass(frozen=True)
class Frames:
    """Splits observations into frames, along their first axis (0) or their last (-1)."""

    count: int = 1
    axis: int = 0

    def slots(self, rows: int, n_step: int, horizon: int) -> int:
        """The frames kept of each environment for this many rows; enough for at least two blocks in the worst case."""
        return rows + rows // SPARE + self.count * (2 * n_step + 4 * horizon + 1)

    def frame_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one frame of an observation of this shape."""
        if self.axis == 0:
            return (shape[0] // self.count, *shape[1:])
        return (*shape[:-1], shape[-1] // self.count)

    def init(self, slots: int, num_envs: int, example: Any) -> FrameState:
        """No frames, for observations like `example`: [...]."""
        frame, nobody = self.frame_shape(example.shape), np.zeros(num_envs, np.int32)
        ring = np.zeros((slots, num_envs, *frame), example.dtype)
        latest = np.zeros((num_envs, self.count, *frame), example.dtype)
        return FrameState(ring, nobody, nobody.copy(), latest)

    def write(
        self, state: FrameState, starts: Array, head: Array, filled: Array, observations: Array, successors: Array
    ) -> tuple[FrameState, Array, Array, Array]:
        """Adds the observations and true successors [T, N, ...] of the rows from `head` on.

        `starts` [rows, N] are the slots where the rows' observations begin. Returns the frames, the slots where these
        observations and successors begin [T, N], and the number of rows that still have all of their frames.
        """
        rows, envs = starts.shape
        everyone, at = jnp.arange(envs), jnp.arange(self.count)

        def step(carry: Any, seen: tuple[Array, Array]) -> Any:
            state, starts, head, filled = carry
            now, later = (self.cut(each.astype(state.ring.dtype)) for each in seen)
            slots = state.ring.shape[0]
            continues = _equal(now, state.latest) & (state.used > 0)
            shifts = _equal(now[:, 1:], later[:, :-1])
            start = jnp.where(continues, state.head - self.count, state.head) % slots
            next_start = jnp.where(shifts, start + 1, start + self.count) % slots
            # Frames that exist already are written again, which is simpler than skipping them.
            where = jnp.concatenate([start[:, None] + at, next_start[:, None] + at], 1) % slots
            written = jnp.concatenate([now, later], 1)
            ring = state.ring.at[where, everyone[:, None]].set(written)
            used = state.used + jnp.where(continues, 0, self.count) + jnp.where(shifts, 1, self.count)
            # The oldest rows are dropped if the ring of rows is full, or if their frames have just been overwritten.
            oldest = (head - filled) % rows
            first = starts[oldest]
            starts = starts.at[head].set(start)
            gone = jnp.arange(2 * self.count + 2)
            freed = jnp.where(gone[:, None] > 0, (starts[(oldest + gone) % rows] - first) % slots, 0)
            fits = (used - freed <= slots).all(1) & (filled - gone < rows)
            dropped = jnp.argmax(fits)
            state = FrameState(ring, (next_start + self.count) % slots, used - freed[dropped], later)
            return (state, starts, (head + 1) % rows, filled - dropped + 1), (start, next_start)

        carry = (state, starts, head, filled)
        (state, _, _, filled), (begin, next_begin) = jax.lax.scan(step, carry, (observations, successors))
        return state, begin, next_begin, filled

    def stacks(self, state: FrameState, starts: Array, envs: Array) -> Array:
        """The observations that begin at these slots [B] of these environments [B]: [B, ...]."""
        where = (starts[:, None] + jnp.arange(self.count)) % state.ring.shape[0]
        return self.joined(state.ring[where, envs[:, None]])

    def cut(self, observations: Array) -> Array:
        """[N, ...] -> [N, count, *frame]."""
        lead, shape = observations.shape[:1], observations.shape[1:]
        if self.axis == 0:
            return observations.reshape(*lead, self.count, *self.frame_shape(shape))
        pieces = observations.reshape(*lead, *shape[:-1], self.count, shape[-1] // self.count)
        return jnp.moveaxis(pieces, -2, 1)

    def joined(self, frames: Array) -> Array:
        """[B, count, *frame] -> [B, ...]."""
        if self.axis == 0:
            return frames.reshape(frames.shape[0], -1, *frames.shape[3:])
        pieces = jnp.moveaxis(frames, 1, -2)
        return pieces.reshape(*pieces.shape[:-2], -1)


def frames_for(shape: tuple[int, ...], dtype: Any, stacked: tuple[int, int] | None) -> Frames | None:
    """The frames of observations of this shape; None for observations that are too small.

    `stacked` is (number of frames, their axis) if an observation is a stack of them.
    """
    if len(shape) < 2 or int(np.prod(shape)) * np.dtype(dtype).itemsize < SMALLEST:
        return None
    return Frames() if stacked is None else Frames(*stacked)


def _equal(a: Array, b: Array) -> Array:
    """Whether rows are equal: two arrays [N, ...] -> [N]."""
    return (a == b).all(tuple(range(1, a.ndim)))
