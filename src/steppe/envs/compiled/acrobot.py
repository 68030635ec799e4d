"""Acrobot-v1: swing a two-link arm above a line by the torque between its links (Sutton 1996), as in gymnasium 1.4."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from steppe.envs._base import CompiledEnv
from steppe.specs._base import Count
from steppe.specs.spaces import Box, Discrete

SECONDS_PER_STEP = 0.2
GRAVITY = 9.8
# Both links are 1 m long, weigh 1 kg, have their centre of mass in the middle and a moment of inertia of 1.
CENTRE = 0.5
INERTIA = 1.0
MAX_VELOCITY_1 = 4 * math.pi
MAX_VELOCITY_2 = 9 * math.pi


class AcrobotState(NamedTuple):
    """Each a float32 scalar: the first joint's angle, the second's relative to it, and their velocities."""

    angle_1: jax.Array
    angle_2: jax.Array
    velocity_1: jax.Array
    velocity_2: jax.Array


class Acrobot(CompiledEnv):
    """Minus one for every timestep until the arm's end is one link's length above the joint."""

    id: ClassVar[str] = "Acrobot-v1"

    max_episode_steps: Count = 500
    """How many timesteps an episode may last before it is truncated."""

    @property
    def observation_space(self) -> Box:
        """Cosine and sine of both angles, then both velocities."""
        high = (1.0, 1.0, 1.0, 1.0, MAX_VELOCITY_1, MAX_VELOCITY_2)
        return Box((6,), tuple(-bound for bound in high), high)

    @property
    def action_space(self) -> Discrete:
        """The torque plus one: -1, 0 or 1."""
        return Discrete(3)

    def reset(self, key: jax.Array) -> AcrobotState:
        """All four numbers uniform within +-0.1: hanging down, nearly still."""
        return AcrobotState(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))

    def step(self, state: AcrobotState, action: jax.Array) -> tuple[AcrobotState, jax.Array, jax.Array]:
        """One fourth-order Runge-Kutta step of 0.2 s."""
        torque = action.astype(jnp.float32) - 1.0
        k1 = _derivative(state, torque)
        k2 = _derivative(_advance(state, k1, SECONDS_PER_STEP / 2), torque)
        k3 = _derivative(_advance(state, k2, SECONDS_PER_STEP / 2), torque)
        k4 = _derivative(_advance(state, k3, SECONDS_PER_STEP), torque)
        slope = AcrobotState(*(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True)))
        angle_1, angle_2, velocity_1, velocity_2 = _advance(state, slope, SECONDS_PER_STEP / 6)
        state = AcrobotState(
            _wrap(angle_1),
            _wrap(angle_2),
            jnp.clip(velocity_1, -MAX_VELOCITY_1, MAX_VELOCITY_1),
            jnp.clip(velocity_2, -MAX_VELOCITY_2, MAX_VELOCITY_2),
        )
        terminated = -jnp.cos(state.angle_1) - jnp.cos(state.angle_1 + state.angle_2) > 1.0
        return state, terminated.astype(jnp.float32) - 1.0, terminated

    def observe(self, state: AcrobotState) -> jax.Array:
        """Float32 [6]."""
        angle_1, angle_2, velocity_1, velocity_2 = state
        return jnp.stack(
            [jnp.cos(angle_1), jnp.sin(angle_1), jnp.cos(angle_2), jnp.sin(angle_2), velocity_1, velocity_2]
        )


def _advance(state: AcrobotState, slope: AcrobotState, seconds: float) -> AcrobotState:
    """The state after moving along a constant slope."""
    return AcrobotState(*(value + seconds * change for value, change in zip(state, slope, strict=True)))


def _derivative(state: AcrobotState, torque: jax.Array) -> AcrobotState:
    """The derivatives of the four numbers, by the equations of Sutton and Barto's book rather than the paper's."""
    angle_1, angle_2, velocity_1, velocity_2 = state
    cos_2, sin_2 = jnp.cos(angle_2), jnp.sin(angle_2)
    d1 = CENTRE**2 + (1.0 + CENTRE**2 + 2 * CENTRE * cos_2) + 2 * INERTIA
    d2 = (CENTRE**2 + CENTRE * cos_2) + INERTIA
    # sin(x) instead of the original's cos(x - pi / 2), which is less exact in float32.
    phi2 = CENTRE * GRAVITY * jnp.sin(angle_1 + angle_2)
    phi1 = (
        -CENTRE * velocity_2**2 * sin_2
        - 2 * CENTRE * velocity_2 * velocity_1 * sin_2
        + (CENTRE + 1.0) * GRAVITY * jnp.sin(angle_1)
        + phi2
    )
    acceleration_2 = (torque + d2 / d1 * phi1 - CENTRE * velocity_1**2 * sin_2 - phi2) / (
        CENTRE**2 + INERTIA - d2**2 / d1
    )
    acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
    return AcrobotState(velocity_1, velocity_2, acceleration_1, acceleration_2)


def _wrap(angle: jax.Array) -> jax.Array:
    """The same angle within [-pi, pi]."""
    # Bounded velocities turn an arm by less than two rounds a step, so no loop is needed.
    turns = jnp.ceil((jnp.abs(angle) - math.pi) / (2 * math.pi))
    return angle - jnp.sign(angle) * jnp.maximum(turns, 0.0) * (2 * math.pi)
