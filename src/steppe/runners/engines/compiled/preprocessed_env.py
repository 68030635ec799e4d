"""Compiled environments with an agent's preprocessing of observations."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import ConfigDict

from steppe.envs._base import CompiledEnv
from steppe.policies.preprocessing import State
from steppe.runners.engines.host.preprocessed_envs import PreprocessedHostEnvs
from steppe.specs.spaces import Space

__all__ = ["PreprocessedHostEnvs", "PreprocessedJaxEnv"]


class PreprocessedState(NamedTuple):
    """A compiled environment's state, with the preprocessed observation and the state of the preprocessing."""

    inner: Any
    observation: Array
    state: State


class PreprocessedJaxEnv(CompiledEnv):
    """A compiled environment with preprocessed observations."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: ClassVar[str] = "preprocessed"
    inner: Any
    """The environment."""
    preprocessing: Any
    """A `Preprocessing`."""

    @property
    def observation_space(self) -> Space:
        """The space of preprocessed observations."""
        return self.preprocessing.space

    @property
    def action_space(self) -> Space:
        """The environment's action space."""
        return self.inner.action_space

    def reset(self, key: Any) -> PreprocessedState:
        """Starts a new episode."""
        state = self.inner.reset(key)
        return self._seen(state, jax.tree.map(jnp.asarray, self.preprocessing.initial(())), is_first=True)

    def step(self, state: PreprocessedState, action: Any) -> tuple[PreprocessedState, Any, Any]:
        """Steps with one action."""
        following, reward, terminated = self.inner.step(state.inner, action)
        return self._seen(following, state.state, is_first=False), reward, terminated

    def observe(self, state: PreprocessedState) -> Any:
        """The preprocessed observation."""
        return state.observation

    def _seen(self, state: Any, before: State, is_first: bool) -> PreprocessedState:
        one_row = jax.tree.map(lambda leaf: leaf[None], before)
        rows, after = self.preprocessing(self.inner.observe(state)[None], one_row, jnp.full(1, is_first), jnp)
        return PreprocessedState(state, rows[0], jax.tree.map(lambda leaf: leaf[0], after))
