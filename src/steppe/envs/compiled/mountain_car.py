"""MountainCar-v0 and MountainCarContinuous-v0: rock a weak car up a hill (Moore 1990), as in gymnasium 1.4."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from steppe.envs._base import CompiledEnv
from steppe.specs._base import Count
from steppe.specs.spaces import Box, Discrete

MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_SPEED = 0.07
GRAVITY = 0.0025


class MountainCarState(NamedTuple):
    """Each a float32 scalar."""

    position: jax.Array
    velocity: jax.Array


class _Hill(CompiledEnv):
    """The hill, its car and its start, which both versions share."""

    goal_velocity: float = 0.0
    """How fast the car must at least be at the goal."""

    @property
    def observation_space(self) -> Box:
        """Position, velocity."""
        return Box((2,), (MIN_POSITION, -MAX_SPEED), (MAX_POSITION, MAX_SPEED))

    def reset(self, key: jax.Array) -> MountainCarState:
        """At rest, near the bottom of the valley."""
        return MountainCarState(jax.random.uniform(key, (), minval=-0.6, maxval=-0.4), jnp.zeros((), jnp.float32))

    def observe(self, state: MountainCarState) -> jax.Array:
        """Float32 [2]."""
        return jnp.stack(state)

    def _move(self, state: MountainCarState, push: jax.Array, goal: float) -> tuple[MountainCarState, jax.Array]:
        """(next state, whether it is at the goal) after a push, float32 []."""
        velocity = jnp.clip(state.velocity + (push - GRAVITY * jnp.cos(3 * state.position)), -MAX_SPEED, MAX_SPEED)
        position = jnp.clip(state.position + velocity, MIN_POSITION, MAX_POSITION)
        velocity = jnp.where((position == jnp.float32(MIN_POSITION)) & (velocity < 0), 0.0, velocity)
        return MountainCarState(position, velocity), (position >= goal) & (velocity >= self.goal_velocity)


class MountainCar(_Hill):
    """Minus one for every timestep until the car is on the hill."""

    id: ClassVar[str] = "MountainCar-v0"

    max_episode_steps: Count = 200
    """How many timesteps an episode may last before it is truncated."""

    @property
    def action_space(self) -> Discrete:
        """0 accelerates to the left, 1 does not, 2 to the right."""
        return Discrete(3)

    def step(self, state: MountainCarState, action: jax.Array) -> tuple[MountainCarState, jax.Array, jax.Array]:
        """One push of -0.001, 0 or 0.001."""
        state, terminated = self._move(state, (action.astype(jnp.float32) - 1.0) * 0.001, goal=0.5)
        return state, jnp.full((), -1.0, jnp.float32), terminated


class MountainCarContinuous(_Hill):
    """A hundred for reaching the hill, minus a tenth of the squared action at every timestep."""

    id: ClassVar[str] = "MountainCarContinuous-v0"

    max_episode_steps: Count = 999
    """How many timesteps an episode may last before it is truncated."""

    @property
    def action_space(self) -> Box:
        """The force, from -1 to 1."""
        return Box((1,), (-1.0,), (1.0,))

    def step(self, state: MountainCarState, action: jax.Array) -> tuple[MountainCarState, jax.Array, jax.Array]:
        """One push of at most 0.0015; as in the original, force beyond its bounds has no effect but costs reward."""
        force = action[0]
        state, terminated = self._move(state, jnp.clip(force, -1.0, 1.0) * 0.0015, goal=0.45)
        return state, jnp.where(terminated, 100.0, 0.0) - 0.1 * jnp.square(force), terminated
