"""The episodes under way in host environments, for everything that collects timesteps in Python. Needs no JAX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from steppe.envs.gymnasium.vector import EnvStep

State = dict[str, np.ndarray]
"""The actor's recurrent state, [N, ...] by name."""


class EpisodeCollector(ABC):
    """Keeps observations, returns, lengths and recurrent states of N environments between two timesteps."""

    def __init__(self, envs: Any, rng: np.random.Generator) -> None:
        self.envs, self.rng = envs, rng

    @abstractmethod
    def initial_state(self) -> State:
        """The recurrent state at the start of episodes."""

    def begin_episodes(self, observations: np.ndarray) -> None:
        """Forgets the episodes so far: all environments have just been reset."""
        count = self.envs.num_envs
        self._observations = observations
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._running_returns = np.zeros(count, np.float32)
        self._state = self.initial_state()

    def count(self, step: EnvStep, rewards: np.ndarray, discount: float) -> None:
        """Adds a timestep to the returns, with rewards as they are learned from."""
        self._returns += step.scores
        self._lengths += 1
        self._running_returns *= discount
        self._running_returns += rewards

    def finish_step(self, step: EnvStep, state: State, returns: list[float], lengths: list[int]) -> bool:
        """Continues after a timestep that led to `state`; whether any episode ended, which adds to the lists."""
        ended = step.terminated | step.truncated
        has_ended = bool(ended.any())
        if has_ended:
            for i in np.flatnonzero(step.finished).tolist():
                returns.append(float(self._returns[i]))
                lengths.append(int(self._lengths[i]))
            self._returns[step.finished] = 0.0
            self._lengths[step.finished] = 0
            self._running_returns[ended] = 0.0
            state = self.restarted(state, ended)
        self._state, self._observations = state, step.observations
        return has_ended

    def restarted(self, state: State, ended: np.ndarray) -> State:
        """Resets the recurrent state of the environments whose episode ended."""
        if not state:
            return state
        initial = self.initial_state()
        return {
            name: np.where(ended.reshape(-1, *(1,) * (value.ndim - 1)), initial[name], value)
            for name, value in state.items()
        }

    def cut_episodes(self, room: Any, t: int, observations: np.ndarray) -> None:
        """Handles the restart of all episodes before timestep t: timestep t - 1, in `room`, was their last."""
        if t:
            room.truncated[t - 1] |= ~room.terminated[t - 1]
        self.begin_episodes(observations)
