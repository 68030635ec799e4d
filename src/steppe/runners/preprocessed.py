"""Environments whose observations have been through an agent's preprocessing."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import ConfigDict

from steppe.envs._base import JaxEnv
from steppe.envs.host import HostEnvs, Step
from steppe.envs.interruption import EpisodesCut
from steppe.records.preprocessing import Preprocessing, State
from steppe.specs.spaces import Space


class Seen(NamedTuple):
    """A compiled environment's state, and what was made of all that it showed so far."""

    inner: Any
    observation: Array
    state: State


class PreprocessedJaxEnv(JaxEnv):
    """A compiled environment seen through preprocessing."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: ClassVar[str] = "preprocessed"
    inner: Any
    """The environment."""
    preprocessing: Any
    """A `Preprocessing`."""

    @property
    def observation_space(self) -> Space:
        """What preprocessing makes of it."""
        return self.preprocessing.space

    @property
    def action_space(self) -> Space:
        """The environment's."""
        return self.inner.action_space

    def reset(self, key: Any) -> Seen:
        """A new episode, of which nothing was seen before."""
        state = self.inner.reset(key)
        return self._seen(state, jax.tree.map(jnp.asarray, self.preprocessing.initial(())), is_first=True)

    def step(self, state: Seen, action: Any) -> tuple[Seen, Any, Any]:
        """One action."""
        following, reward, terminated = self.inner.step(state.inner, action)
        return self._seen(following, state.state, is_first=False), reward, terminated

    def observe(self, state: Seen) -> Any:
        """What was made of it already."""
        return state.observation

    def _seen(self, state: Any, before: State, is_first: bool) -> Seen:
        one_row = jax.tree.map(lambda leaf: leaf[None], before)
        rows, after = self.preprocessing(self.inner.observe(state)[None], one_row, jnp.full(1, is_first), jnp)
        return Seen(state, rows[0], jax.tree.map(lambda leaf: leaf[0], after))


class PreprocessedHostEnvs:
    """Host environments seen through preprocessing: what the host engine asks of `HostEnvs`."""

    def __init__(self, envs: HostEnvs, preprocessing: Preprocessing) -> None:
        self.envs = envs
        self.preprocessing = preprocessing
        self.num_envs = envs.num_envs
        self.observation_space = preprocessing.space
        self.action_space = envs.action_space
        self.max_episode_steps = envs.max_episode_steps
        self.notices = envs.notices
        self._state: State = preprocessing.initial((envs.num_envs,))

    def reset(self, seed: int) -> np.ndarray:
        """New episodes, of which nothing was seen before."""
        return self._take_in(self.envs.reset(seed), np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> Step:
        """One decision in each environment."""
        try:
            step = self.envs.step(actions)
        except EpisodesCut as cut:
            cut.observations = self._take_in(cut.observations, np.ones(self.num_envs, bool))
            raise
        following = self._take_in(step.next_observations, np.zeros(self.num_envs, bool))
        ended = step.terminated | step.truncated
        if not ended.any():
            return step._replace(observations=following, next_observations=following)
        rows = {name: leaf[ended] for name, leaf in self._state.items()}
        fresh, after = self.preprocessing(step.observations[ended], rows, np.ones(int(ended.sum()), bool))
        # What was returned may be part of the state: neither is written into.
        observations = following.copy()
        observations[ended] = fresh
        self._state = {name: _with_rows(leaf, ended, after[name]) for name, leaf in self._state.items()}
        return step._replace(observations=observations, next_observations=following)

    def close(self) -> None:
        """Ends the environments."""
        self.envs.close()

    def __enter__(self) -> PreprocessedHostEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_in(self, observations: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        processed, self._state = self.preprocessing(observations, self._state, is_first)
        return processed


def _with_rows(leaf: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    changed = leaf.copy()
    changed[rows] = values
    return changed
