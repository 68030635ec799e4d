"""Pendulum-v1: swing a pendulum up and hold it there with a weak motor, as gymnasium 1.4 computes it."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from steppe.envs._base import CompiledEnv
from steppe.specs._base import Count
from steppe.specs.spaces import Box

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
SECONDS_PER_STEP = 0.05


class PendulumState(NamedTuple):
    """Each a float32 scalar; an angle of 0 is upright, and every angle lies within [-pi, pi]."""

    angle: jax.Array
    velocity: jax.Array


class Pendulum(CompiledEnv):
    """Minus the squared angle, a little of the speed and a trace of the torque at every timestep, without an end."""

    id: ClassVar[str] = "Pendulum-v1"

    max_episode_steps: Count = 200
    """How many timesteps an episode may last before it is truncated."""
    g: float = 10.0
    """The acceleration of gravity."""

    @property
    def observation_space(self) -> Box:
        """Cosine and sine of the angle, velocity."""
        return Box((3,), (-1.0, -1.0, -MAX_SPEED), (1.0, 1.0, MAX_SPEED))

    @property
    def action_space(self) -> Box:
        """The torque, from -2 to 2."""
        return Box((1,), (-MAX_TORQUE,), (MAX_TORQUE,))

    def reset(self, key: jax.Array) -> PendulumState:
        """Any angle, a velocity within +-1."""
        angle, velocity = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return PendulumState(angle * math.pi, velocity)

    def step(self, state: PendulumState, action: jax.Array) -> tuple[PendulumState, jax.Array, jax.Array]:
        """One semi-implicit Euler step of 50 ms."""
        angle, velocity = state
        torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
        cost = jnp.square(angle) + 0.1 * jnp.square(velocity) + 0.001 * jnp.square(torque)
        velocity = velocity + (1.5 * self.g * jnp.sin(angle) + 3.0 * torque) * SECONDS_PER_STEP
        velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
        # The original lets the angle grow; wrapped, it keeps its precision in float32 in long episodes.
        angle = _wrap(angle + velocity * SECONDS_PER_STEP)
        return PendulumState(angle, velocity), -cost, jnp.zeros((), bool)

    def observe(self, state: PendulumState) -> jax.Array:
        """Float32 [3]."""
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])


def _wrap(angle: jax.Array) -> jax.Array:
    """The same angle within [-pi, pi]; one round suffices, since a step turns it by 0.4 at most."""
    return angle - jnp.where(angle > math.pi, 2 * math.pi, jnp.where(angle < -math.pi, -2 * math.pi, 0.0))
