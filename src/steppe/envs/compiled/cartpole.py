"""CartPole-v0 and -v1: balance a pole on a cart (Barto, Sutton and Anderson 1983), as gymnasium 1.4 computes it."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from steppe.envs._base import CompiledEnv
from steppe.specs._base import Count
from steppe.specs.spaces import Box, Discrete

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0
SECONDS_PER_STEP = 0.02
ANGLE_LIMIT = 12 * 2 * math.pi / 360
POSITION_LIMIT = 2.4


class CartPoleState(NamedTuple):
    """Each a float32 scalar."""

    position: jax.Array
    velocity: jax.Array
    angle: jax.Array
    angular_velocity: jax.Array


class CartPoleV1(CompiledEnv):
    """One reward for every timestep until the pole falls or the cart leaves the track."""

    id: ClassVar[str] = "CartPole-v1"

    max_episode_steps: Count = 500
    """How many timesteps an episode may last before it is truncated."""
    sutton_barto_reward: bool = False
    """Whether a fall is rewarded with -1 and everything else with 0, instead of 1 for every timestep."""

    @property
    def observation_space(self) -> Box:
        """Position, velocity, angle, angular velocity."""
        high = (2 * POSITION_LIMIT, math.inf, 2 * ANGLE_LIMIT, math.inf)
        return Box((4,), tuple(-bound for bound in high), high)

    @property
    def action_space(self) -> Discrete:
        """0 pushes left, 1 pushes right."""
        return Discrete(2)

    def reset(self, key: jax.Array) -> CartPoleState:
        """All four numbers uniform within +-0.05."""
        return CartPoleState(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def step(self, state: CartPoleState, action: jax.Array) -> tuple[CartPoleState, jax.Array, jax.Array]:
        """One explicit Euler step of 20 ms."""
        position, velocity, angle, angular_velocity = state
        force = jnp.where(action == 1, FORCE, -FORCE)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (force + POLE_MASS_LENGTH * jnp.square(angular_velocity) * sin) / TOTAL_MASS
        angular_acceleration = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * jnp.square(cos) / TOTAL_MASS)
        )
        acceleration = push - POLE_MASS_LENGTH * angular_acceleration * cos / TOTAL_MASS
        state = CartPoleState(
            position + SECONDS_PER_STEP * velocity,
            velocity + SECONDS_PER_STEP * acceleration,
            angle + SECONDS_PER_STEP * angular_velocity,
            angular_velocity + SECONDS_PER_STEP * angular_acceleration,
        )
        terminated = (jnp.abs(state.position) > POSITION_LIMIT) | (jnp.abs(state.angle) > ANGLE_LIMIT)
        if self.sutton_barto_reward:
            reward = -terminated.astype(jnp.float32)
        else:
            reward = jnp.ones((), jnp.float32)
        return state, reward, terminated

    def observe(self, state: CartPoleState) -> jax.Array:
        """The whole state, float32 [4]."""
        return jnp.stack(state)


class CartPoleV0(CartPoleV1):
    """CartPole-v1 with episodes of 200 timesteps at most."""

    id: ClassVar[str] = "CartPole-v0"

    max_episode_steps: Count = 200
    """How many timesteps an episode may last before it is truncated."""
