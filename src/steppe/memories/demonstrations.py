"""A replay memory with demonstrations that are never overwritten; each batch is drawn from both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.memories.replay import Following, Leaf, Replay, ReplayState, Sample, Timesteps, after
from steppe.memories.sum_tree import SumTree


class DemonstratedState(NamedTuple):
    """The memory's contents."""

    own: ReplayState
    """The agent's own timesteps."""
    demonstrations: Timesteps
    """[M, 1, ...], in order of time; the last one ends an episode. They never change."""
    tree: Leaf
    """The demonstrations' priorities as a sum tree, [0] if sampling is uniform."""

    @property
    def filled(self) -> Leaf:
        """The number of filled rows of the agent's own timesteps."""
        return self.own.filled


@dataclass(frozen=True, eq=False)
class DemonstratedReplay:
    """A `Replay` in which `per_batch` rows of each batch are demonstrations.

    Indices continue those of the replay memory: the first demonstration follows its last row.
    """

    own: Replay
    demonstrations: Timesteps
    """NumPy arrays [M, 1, ...]."""
    per_batch: int

    @property
    def rows(self) -> int:
        """The rows for the agent's own timesteps."""
        return self.own.rows

    @property
    def num_envs(self) -> int:
        """The number of the agent's environments."""
        return self.own.num_envs

    @property
    def n_step(self) -> int:
        """The number of rewards that are summed."""
        return self.own.n_step

    @property
    def prioritized(self) -> bool:
        """Whether both parts are drawn by priority."""
        return self.own.prioritized

    @property
    def count(self) -> int:
        """The number of demonstrated timesteps."""
        return len(self.demonstrations.rewards)

    @property
    def capacity(self) -> int:
        """How many timesteps of the agent's own are kept."""
        return self.own.capacity

    def with_capacity(self, capacity: int) -> DemonstratedReplay:
        """The same memory with room for more or fewer timesteps of the agent's own."""
        return replace(self, own=self.own.with_capacity(capacity))

    def with_numbers(self, discount: Any, priority_exponent: Any, importance_exponent: Any) -> DemonstratedReplay:
        """The same memory with other numbers, which may be traced."""
        return replace(self, own=self.own.with_numbers(discount, priority_exponent, importance_exponent))

    def size(self, example: Timesteps) -> int:
        """How many bytes the agent's own timesteps take."""
        return self.own.size(example)

    def init(self, example: Timesteps) -> DemonstratedState:
        """A memory of all demonstrations, with equal priorities, and no timestep of the agent."""
        # Copies, since a compiled program may overwrite its arguments.
        shown = jax.tree.map(lambda leaf, like: np.array(leaf, like.dtype), self.demonstrations, example)
        tree: Any = np.zeros(0, np.float32)
        if self.prioritized:
            everywhere = jnp.arange(self.count)
            tree = np.asarray(self._tree.set(jnp.asarray(self._tree.init()), everywhere, jnp.ones(self.count)))
        return DemonstratedState(self.own.init(example), shown, tree)

    def cut(self, state: DemonstratedState) -> DemonstratedState:
        """Truncates the episodes at the agent's newest row, so that the next row does not continue them."""
        return state._replace(own=self.own.cut(state.own))

    def add(self, state: DemonstratedState, timesteps: Timesteps) -> DemonstratedState:
        """Overwrites the agent's oldest rows by [horizon, N, ...]."""
        return state._replace(own=self.own.add(state.own, timesteps))

    def sample(self, state: DemonstratedState, key: Array, batch_size: int) -> Sample:
        """Draws a batch whose last `per_batch` rows are demonstrations."""
        own_key, shown_key = jax.random.split(key)
        own = self.own.sample(state.own, own_key, batch_size - self.per_batch)
        own = self._complete(own, self.own.following(state.own, own.places, 1), demonstrated=False)
        shown = self.sample_demonstrations(state, shown_key, self.per_batch)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), own, shown)

    def sample_demonstrations(self, state: DemonstratedState, key: Array, batch_size: int) -> Sample:
        """Draws a batch of demonstrations alone."""
        weights = jnp.ones(batch_size)
        if self.prioritized:
            drawn, probabilities = self._tree.sample(state.tree, key, batch_size)
            weights = self.own.importance_weights(probabilities, self.count)
        else:
            drawn = jax.random.randint(key, (batch_size,), 0, self.count)
        timesteps, only = state.demonstrations, jnp.zeros_like(drawn)
        following = after(timesteps, drawn, only, self.n_step, self.own.discount)
        observations, actions = timesteps.observations[drawn, 0], timesteps.actions[drawn, 0]
        sample = Sample(observations, actions, *following, weights, drawn + self._first)
        return self._complete(sample, after(timesteps, drawn, only, 1, self.own.discount), demonstrated=True)

    def reprioritize(self, state: DemonstratedState, places: Array, errors: Array, when: Array) -> DemonstratedState:
        """Gives the timesteps that `sample` drew the priority of their newest error [B], if `when` holds."""
        border = len(places) - self.per_batch
        own = self.own.reprioritize(state.own, places[:border], errors[:border], when)
        return self.reprioritize_demonstrations(state._replace(own=own), places[border:], errors[border:], when)

    def reprioritize_demonstrations(
        self, state: DemonstratedState, places: Array, errors: Array, when: Array
    ) -> DemonstratedState:
        """`reprioritize` for a batch of demonstrations alone."""
        drawn = places - self._first
        priorities = self.own.priorities(self._tree.get(state.tree, drawn), errors, when)
        return state._replace(tree=self._tree.set(state.tree, drawn, priorities))

    @property
    def _tree(self) -> SumTree:
        return SumTree(self.count)

    @property
    def _first(self) -> int:
        return self.rows * self.num_envs

    def _complete(self, sample: Sample, single: Following, demonstrated: bool) -> Sample:
        """Adds the 1-step results, if n is larger, and whether the timesteps were demonstrated."""
        flags = jnp.full(sample.places.shape, demonstrated)
        return sample._replace(single=single if self.n_step > 1 else None, demonstrated=flags)
