"""Compiled and gymnasium environments that take the actions of policies. Importing this is light."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.envs.gymnasium.vector import EnvStep, GymnasiumEnvs
from steppe.envs.registry import make_compiled, notices_of_limit
from steppe.specs.environment import EnvironmentSpec


class GymnasiumPlayEnvs(GymnasiumEnvs):
    """Gymnasium environments, whose actions otherwise count from 0."""

    def __init__(
        self,
        environment: EnvironmentSpec,
        limit: int | None = None,
        repeat: int = 1,
        num_envs: int = 1,
        render_mode: str | None = None,
    ) -> None:
        """`limit`: timesteps after which an episode is cut; `repeat`: the steps for which each action is repeated."""
        super().__init__(environment, num_envs, limit, repeat, render_mode)

    def step(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; actions: [N, ...]."""
        return super().step(actions - getattr(self.action_space, "start", 0))


class CompiledPlayEnvs:
    """Compiled environments with the interface of `GymnasiumPlayEnvs`."""

    def __init__(
        self,
        environment: EnvironmentSpec,
        limit: int | None = None,
        repeat: int = 1,
        usual_limit: int | None = None,
        num_envs: int = 1,
    ) -> None:
        """`usual_limit` applies if neither `limit` nor the environment has a time limit."""
        import jax

        from steppe.envs.compiled.repeated import Repeated
        from steppe.runners.compilation import prepare_jax

        prepare_jax()
        env = make_compiled(environment)
        if repeat > 1:
            env = Repeated(inner=env, times=repeat, max_episode_steps=env.max_episode_steps)
        self._env, self.num_envs = env, num_envs
        self.observation_space, self.action_space = env.observation_space, env.action_space
        limits = [each for each in (limit, env.max_episode_steps) if each is not None]
        self.max_episode_steps = min(limits, default=usual_limit)
        self.notices = notices_of_limit(environment, limit, self.max_episode_steps)
        self._states: Any = None
        self._lengths = np.zeros(num_envs, int)
        self._begin, self._step = jax.jit(self._begun), jax.jit(self._stepped)
        self._begin_again = jax.jit(self._begun_again)

    def reset(self, seed: int) -> np.ndarray:
        """The first observations, [N, ...]."""
        import jax

        self._lengths[:] = 0
        self._key, self._states, observations = self._begin(jax.random.key(seed))
        return np.asarray(observations)

    def step(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; actions: [N, ...]."""
        self._states, shown, gained, over = self._step(self._states, actions)
        self._lengths += 1
        rewards, terminated = np.asarray(gained, np.float32), np.asarray(over)
        truncated = np.zeros(self.num_envs, bool)
        if self.max_episode_steps is not None:
            truncated = ~terminated & (self._lengths >= self.max_episode_steps)
        following = observations = np.asarray(shown)
        finished = terminated | truncated
        if finished.any():
            self._lengths[finished] = 0
            self._key, self._states, first = self._begin_again(self._key, self._states, shown, finished)
            observations = np.asarray(first)
        return EnvStep(observations, rewards, terminated, truncated, following, rewards, finished)

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> CompiledPlayEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begun(self, key: Any) -> tuple[Any, Any, Any]:
        """(the next key, states, observations) of new episodes everywhere."""
        import jax

        key, fresh = jax.random.split(key)
        states = jax.vmap(self._env.reset)(jax.random.split(fresh, self.num_envs))
        return key, states, jax.vmap(self._env.observe)(states)

    def _begun_again(self, key: Any, states: Any, observations: Any, finished: Any) -> tuple[Any, Any, Any]:
        """The same with new episodes only in the environments that are `finished` [N]."""
        import jax
        import jax.numpy as jnp

        key, *fresh = self._begun(key)

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(finished.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        states, observations = jax.tree.map(chosen, tuple(fresh), (states, observations))
        return key, states, observations

    def _stepped(self, states: Any, actions: Any) -> tuple[Any, Any, Any, Any]:
        """(states, observations, rewards, terminated), in one call."""
        import jax

        states, rewards, terminated = jax.vmap(self._env.step)(states, actions)
        return states, jax.vmap(self._env.observe)(states), rewards, terminated
