"""Replay memory as pure functions over arrays: a ring of the last timesteps of N environments.

Sampling is uniform (Lin 1992) or prioritised by error (Schaul et al. 2016, arXiv:1511.05952). n-step returns are
computed when a batch is drawn, so the memory holds plain timesteps for any algorithm. Pictures are kept once, as
frames: see `steppe.memories.frames`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.errors import UserError
from steppe.memories.frames import Frames, FrameState
from steppe.memories.sum_tree import SumTree
from steppe.specs.spaces import Space

Leaf = Any
"""A JAX array, or a NumPy array that becomes one."""


class Timesteps(NamedTuple):
    """The stored data of timesteps; leaves are [rows, N, ...]."""

    observations: Leaf
    actions: Leaf
    rewards: Leaf
    terminated: Leaf
    truncated: Leaf
    next_observations: Leaf


class ReplayState(NamedTuple):
    """The memory's contents."""

    timesteps: Timesteps
    """[rows, N, ...], a ring buffer. Observations that are kept as frames are the slots where they begin."""
    head: Leaf
    """The next row to be written."""
    filled: Leaf
    """The number of filled rows."""
    tree: Leaf
    """Priorities as a sum tree, [0] if sampling is uniform."""
    highest: Leaf
    """The highest priority so far, with which new timesteps start."""
    frames: FrameState | tuple[()] = ()
    """The frames of the observations, () if those are kept whole."""


class Following(NamedTuple):
    """The n-step results of timesteps; leaves [B, ...]."""

    rewards: Array
    """The discounted sum of the rewards."""
    discounts: Array
    """The factor for the value of `next_observations`: 0 if the episode terminated."""
    next_observations: Array


class Sample(NamedTuple):
    """A batch [B, ...] with n-step returns and the indices of its timesteps."""

    observations: Array
    actions: Array
    rewards: Array
    discounts: Array
    next_observations: Array
    weights: Array
    places: Array
    """Row x N + environment of each drawn timestep."""
    single: Following | None = None
    """The 1-step results, for algorithms that use them beside n-step returns."""
    demonstrated: Array | None = None
    """Whether each was demonstrated [B], if there are demonstrations."""


@dataclass(frozen=True)
class Replay:
    """The configuration of a memory; its contents are a `ReplayState`."""

    capacity: int
    """The number of timesteps, of all environments together."""
    num_envs: int
    horizon: int
    """The number of rows that are written at once."""
    discount: float
    n_step: int = 1
    prioritized: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    frames: Frames | None = None
    """The frames of observations; None keeps observations whole."""

    @property
    def rows(self) -> int:
        """Whole blocks of `horizon` rows, at least enough for one n-step window beside the block being written."""
        blocks = -(-self.capacity // (self.num_envs * self.horizon))
        least = -(-(self.n_step + self.horizon) // self.horizon)
        return max(blocks, least) * self.horizon

    @property
    def _tree(self) -> SumTree:
        return SumTree(self.rows * self.num_envs)

    def with_capacity(self, capacity: int) -> Replay:
        """The same memory with room for more or fewer timesteps."""
        return replace(self, capacity=capacity)

    def with_numbers(self, discount: Any, priority_exponent: Any, importance_exponent: Any) -> Replay:
        """The same memory with other numbers, which may be traced."""
        return replace(
            self, discount=discount, priority_exponent=priority_exponent, importance_exponent=importance_exponent
        )

    def init(self, example: Timesteps) -> ReplayState:
        """An empty memory for timesteps like `example`, whose leaves are one environment's: [...]."""
        self._check_room(example)
        frames: FrameState | tuple[()] = ()
        if self.frames is not None:
            frames = self.frames.init(self._slots, self.num_envs, example.observations)
            slot = jax.ShapeDtypeStruct((), np.int32)
            example = example._replace(observations=slot, next_observations=slot)

        def room(leaf: Any) -> np.ndarray:
            return np.zeros((self.rows, self.num_envs, *leaf.shape), leaf.dtype)

        return ReplayState(
            timesteps=jax.tree.map(room, example),
            head=np.int32(0),
            filled=np.int32(0),
            tree=self._tree.init() if self.prioritized else np.zeros(0, np.float32),
            highest=np.float32(1.0),
            frames=frames,
        )

    def size(self, example: Timesteps) -> int:
        """The bytes of a full memory of timesteps like `example`."""
        leaves = jax.tree.leaves(example)
        if self.frames is not None:
            leaves = [example.actions, example.rewards, example.terminated, example.truncated]
        each = sum(_bytes(leaf) for leaf in leaves)
        total = self.rows * self.num_envs * each + (8 * self._tree.leaves if self.prioritized else 0)
        if self.frames is not None:
            total += self.num_envs * (8 * self.rows + self._slots * _bytes(example.observations) // self.frames.count)
        return total

    def _check_room(self, example: Timesteps) -> None:
        """Refuses a memory larger than that of the machine, before it is allocated."""
        needed = self.size(example)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > there:
            raise UserError(
                f"a replay memory of {self.capacity:,} timesteps takes {needed / 1e9:,.1f} GB, and this machine has "
                f"{there / 1e9:,.1f} GB; make agent.memory.capacity smaller"
            )

    def add(self, state: ReplayState, timesteps: Timesteps) -> ReplayState:
        """Overwrites the oldest rows by [horizon, N, ...]."""
        if self.frames is None:
            return self._add(state, timesteps)
        frames, starts, next_starts, filled = self.frames.write(
            state.frames,  # type: ignore[arg-type]
            state.timesteps.observations,
            state.head,
            state.filled,
            timesteps.observations,
            timesteps.next_observations,
        )
        state = self._add(state, timesteps._replace(observations=starts, next_observations=next_starts))
        dropped = state.filled - filled
        if self.prioritized:
            # Rows whose frames were overwritten must not be drawn any more.
            at_most = jnp.arange(min((2 * self.frames.count + 1) * self.horizon, self.rows))
            places = self._places((state.head - state.filled + at_most) % self.rows)
            gone = jnp.repeat(at_most < dropped, self.num_envs)
            priorities = jnp.where(gone, 0.0, self._tree.get(state.tree, places))
            state = state._replace(tree=self._tree.set(state.tree, places, priorities))
        return state._replace(frames=frames, filled=filled)

    def _add(self, state: ReplayState, timesteps: Timesteps) -> ReplayState:
        written = jax.tree.map(
            lambda store, new: jax.lax.dynamic_update_slice_in_dim(store, new.astype(store.dtype), state.head, 0),
            state.timesteps,
            timesteps,
        )
        tree = state.tree
        if self.prioritized:
            # Rows without all n successors must not be drawn yet, so their priority is 0.
            fresh = state.head + jnp.arange(self.horizon)
            tree = self._tree.set(tree, self._places(fresh), jnp.zeros(self.horizon * self.num_envs))
            ready = (fresh - (self.n_step - 1)) % self.rows
            exists = state.filled + jnp.arange(self.horizon) >= self.n_step - 1
            priorities = jnp.where(exists, state.highest, 0.0)
            tree = self._tree.set(tree, self._places(ready), jnp.repeat(priorities, self.num_envs))
        return state._replace(
            timesteps=written,
            head=(state.head + self.horizon) % self.rows,
            filled=jnp.minimum(state.filled + self.horizon, self.rows),
            tree=tree,
        )

    def cut(self, state: ReplayState) -> ReplayState:
        """Truncates the episodes at the newest row, so that the next row does not continue them."""
        newest = (state.head - 1) % self.rows
        kept = state.timesteps
        truncated = jnp.asarray(kept.truncated).at[newest].set(~jnp.asarray(kept.terminated)[newest])
        return state._replace(timesteps=kept._replace(truncated=truncated))

    def sample(self, state: ReplayState, key: Array, batch_size: int) -> Sample:
        """Draws a batch; the memory must hold at least `n_step` rows."""
        drawable = jnp.maximum(state.filled - (self.n_step - 1), 1) * self.num_envs
        if self.prioritized:
            places, probabilities = self._tree.sample(state.tree, key, batch_size)
            weights = self.importance_weights(probabilities, drawable)
        else:
            oldest = (state.head - state.filled) % self.rows
            drawn = jax.random.randint(key, (batch_size,), 0, drawable)
            rows = (oldest + drawn // self.num_envs) % self.rows
            places = rows * self.num_envs + drawn % self.num_envs
            weights = jnp.ones(batch_size)
        rows, envs = places // self.num_envs, places % self.num_envs
        following = self.following(state, places, self.n_step)
        observations = self._observed(state, state.timesteps.observations[rows, envs], envs)
        return Sample(observations, state.timesteps.actions[rows, envs], *following, weights, places)

    def following(self, state: ReplayState, places: Array, n_step: int) -> Following:
        """The n-step results from each of these indices [B] on."""
        rows, envs = places // self.num_envs, places % self.num_envs
        found = after(state.timesteps, rows, envs, n_step, self.discount)
        return found._replace(next_observations=self._observed(state, found.next_observations, envs))

    def reprioritize(self, state: ReplayState, places: Array, errors: Array, when: Array) -> ReplayState:
        """Gives drawn timesteps the priority of their newest error [B], if `when` holds."""
        priorities = self.priorities(self._tree.get(state.tree, places), errors, when)
        return state._replace(
            tree=self._tree.set(state.tree, places, priorities),
            highest=jnp.maximum(state.highest, priorities.max()),
        )

    def importance_weights(self, probabilities: Array, count: Any) -> Array:
        """(count x probability) ** -importance_exponent, scaled to a maximum of 1 (Schaul et al. 2016, section 3.4)."""
        weights = (count * probabilities) ** -self.importance_exponent
        return weights / weights.max()

    def priorities(self, old: Array, errors: Array, when: Array) -> Array:
        """The priorities of errors [B] if `when` holds, else the old ones."""
        return jnp.where(when, (jnp.abs(errors) + 1e-6) ** self.priority_exponent, old)

    def _places(self, rows: Array) -> Array:
        return (rows[:, None] * self.num_envs + jnp.arange(self.num_envs)).reshape(-1)

    @property
    def _slots(self) -> int:
        assert self.frames is not None
        return self.frames.slots(self.rows, self.n_step, self.horizon)

    def _observed(self, state: ReplayState, kept: Array, envs: Array) -> Array:
        """The observations [B, ...] from their stored form [B, ...]."""
        if self.frames is None:
            return kept
        return self.frames.stacks(state.frames, kept, envs)  # type: ignore[arg-type]


def stored_dtype(space: Space) -> str:
    """The dtype in which observations or actions of a space are stored."""
    return space.dtype if space.dtype in ("uint8", "int32") else "float32"


def after(timesteps: Timesteps, rows: Array, envs: Array, n_step: int, discount: float) -> Following:
    """Sums up to n rewards from each row and environment [B] on, up to the end of its episode; rows are a ring."""
    count = timesteps.rewards.shape[0]
    returns = jnp.zeros(rows.shape)
    discounts = jnp.ones(rows.shape)
    going = jnp.ones(rows.shape, bool)
    terminated = jnp.zeros(rows.shape, bool)
    last = rows
    for step in range(n_step):
        at = (rows + step) % count
        last = jnp.where(going, at, last)
        returns = returns + jnp.where(going, discounts * timesteps.rewards[at, envs], 0.0)
        discounts = jnp.where(going, discounts * discount, discounts)
        terminated = terminated | (going & timesteps.terminated[at, envs])
        going = going & ~(timesteps.terminated[at, envs] | timesteps.truncated[at, envs])
    return Following(returns, jnp.where(terminated, 0.0, discounts), timesteps.next_observations[last, envs])


def _bytes(leaf: Any) -> int:
    return int(np.prod(leaf.shape)) * leaf.dtype.itemsize
