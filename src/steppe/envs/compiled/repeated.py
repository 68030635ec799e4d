"""A compiled environment that repeats each action."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from pydantic import ConfigDict

from steppe.envs._base import CompiledEnv, State
from steppe.specs.spaces import Space


class Repeated(CompiledEnv):
    """One decision is `times` steps of another environment, fewer if the episode ends; their rewards are summed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: ClassVar[str] = "repeated"
    inner: Any
    """The repeated environment."""
    times: int
    """How many steps each action lasts."""

    @property
    def observation_space(self) -> Space:
        """The environment's."""
        return self.inner.observation_space

    @property
    def action_space(self) -> Space:
        """The environment's."""
        return self.inner.action_space

    def reset(self, key: Any) -> State:
        """A new episode."""
        return self.inner.reset(key)

    def step(self, state: State, action: Any) -> tuple[State, Any, Any]:
        """Repeats the action."""

        def again(_: int, carry: tuple[State, Any, Any]) -> tuple[State, Any, Any]:
            state, reward, over = carry
            successor, more, terminated = self.inner.step(state, action)
            state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, successor)
            return state, reward + jnp.where(over, 0.0, more), over | terminated

        return jax.lax.fori_loop(1, self.times, again, self.inner.step(state, action))

    def observe(self, state: State) -> Any:
        """The environment's observation."""
        return self.inner.observe(state)
