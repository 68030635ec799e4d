"""Host environments with an agent's preprocessing of observations; needs no JAX."""

from __future__ import annotations

import numpy as np

from steppe.envs._base import EpisodesCut
from steppe.envs.gymnasium.vector import EnvStep, GymnasiumEnvs
from steppe.policies.preprocessing import Preprocessing, State


class PreprocessedHostEnvs:
    """Host environments with preprocessed observations and the interface of `GymnasiumEnvs`."""

    def __init__(self, envs: GymnasiumEnvs, preprocessing: Preprocessing) -> None:
        self.envs = envs
        self.preprocessing = preprocessing
        self.num_envs = envs.num_envs
        self.observation_space = preprocessing.space
        self.action_space = envs.action_space
        self.max_episode_steps = envs.max_episode_steps
        self.notices = envs.notices
        self._state: State = preprocessing.initial((envs.num_envs,))

    def reset(self, seed: int) -> np.ndarray:
        """Starts new episodes everywhere."""
        return self._take_in(self.envs.reset(seed), np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> EnvStep:
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
        # Copied, since the returned observations may be part of the state.
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
