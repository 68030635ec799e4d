"""One environment to play in, compiled or not, that takes actions as policies give them. Importing this is light."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.envs.host import HostEnvs, Step
from steppe.envs.registry import make_jax
from steppe.specs.environment import EnvironmentSpec


class Host(HostEnvs):
    """A gymnasium environment, whose actions otherwise count from 0."""

    def __init__(self, environment: EnvironmentSpec, limit: int | None = None, repeat: int = 1) -> None:
        """`limit`: timesteps after which an episode is cut; `repeat`: how many steps each action lasts."""
        super().__init__(environment, 1, limit, repeat)

    def step(self, actions: np.ndarray) -> Step:
        """One decision; actions: [1, ...]."""
        return super().step(actions - getattr(self.action_space, "start", 0))


class Twin:
    """One compiled environment with the interface of `Host`."""

    def __init__(
        self, environment: EnvironmentSpec, limit: int | None = None, repeat: int = 1, usual_limit: int | None = None
    ) -> None:
        """`usual_limit` is for where neither `limit` nor the environment says when an episode is cut."""
        import jax

        from steppe.runners.compilation import prepare_jax

        prepare_jax()
        self._env = make_jax(environment)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        limits = [each for each in (limit, self._env.max_episode_steps) if each is not None]
        self.max_episode_steps = min(limits, default=usual_limit)
        self._repeat = repeat
        self._state: Any = None
        self._length = 0
        self._reset, self._step = jax.jit(self._env.reset), jax.jit(self._stepped)
        self._observe = jax.jit(self._env.observe)

    def reset(self, seed: int) -> np.ndarray:
        """The first observation, [1, ...]."""
        import jax

        self._key = jax.random.key(seed)
        return self._begin()

    def step(self, actions: np.ndarray) -> Step:
        """One decision; actions: [1, ...]."""
        reward, terminated = 0.0, False
        for _ in range(self._repeat):
            self._state, shown, gained, over = self._step(self._state, actions[0])
            reward, terminated = reward + float(gained), bool(over)
            if terminated:
                break
        self._length += 1
        truncated = not terminated and self.max_episode_steps is not None and self._length >= self.max_episode_steps
        following = np.asarray(shown)[None]
        observations = self._begin() if terminated or truncated else following
        rewards = np.array([reward], np.float32)
        ended, cut, finished = (np.array([flag]) for flag in (terminated, truncated, terminated or truncated))
        return Step(observations, rewards, ended, cut, following, rewards, finished)

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _begin(self) -> np.ndarray:
        import jax

        self._key, key = jax.random.split(self._key)
        self._state, self._length = self._reset(key), 0
        return np.asarray(self._observe(self._state))[None]

    def _stepped(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        """(state, observation, reward, terminated), in one call."""
        state, reward, terminated = self._env.step(state, action)
        return state, self._env.observe(state), reward, terminated
