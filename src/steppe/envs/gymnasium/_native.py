"""The vectorised version of an environment's own (`vector_entry_point`), if its resets are exact."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from steppe.envs.gymnasium._sync import EnvDescription, NumberCheck, StepBuffers, fault_of
from steppe.envs.gymnasium.factory import checked_limit, find_spec
from steppe.envs.spaces import action_crossing, observation_crossing
from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.user_code import told

WAY_OUT = 'write "vectorization": "sync" or "processes"'
NO_REWARDS = np.zeros(0, np.float32)


class NativeEnvs:
    """N environments in one vectorised object that resets each of them in the step in which its episode ends.

    Versions that reset one step late are refused: they ignore the action of that step, so a learner would learn from a
    step that nobody took.
    """

    def __init__(self, spec: EnvironmentSpec, count: int, max_timesteps: int | None, repeat: int) -> None:
        self._id = spec.id
        if repeat != 1:
            raise UserError(f'environment "{spec.id}" cannot repeat actions in its native version; {WAY_OUT}')
        if spec.wrappers:
            raise UserError(f'environment "{spec.id}" cannot be wrapped in its native version; {WAY_OUT}')
        registration = find_spec(spec.id)
        settings = dict(spec.settings)
        entry = registration.vector_entry_point
        if entry is None:
            raise UserError(f'environment "{spec.id}" has no native vectorised version; {WAY_OUT}')
        limit = checked_limit(settings.pop("max_episode_steps", registration.max_episode_steps or -1), spec.id)
        if max_timesteps is not None:
            if limit is None:
                raise UserError(
                    f'environment "{spec.id}" has no time limit that max_timesteps_per_episode could shorten in its '
                    f"native version; {WAY_OUT}"
                )
            limit = min(limit, max_timesteps)
        if limit is not None:
            settings["max_episode_steps"] = limit
        try:
            creator = entry if callable(entry) else load_env_creator(entry)
            if "autoreset_mode" in inspect.signature(creator).parameters:
                settings.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
            self._envs: Any = gymnasium.make_vec(
                registration, num_envs=count, vectorization_mode="vector_entry_point", **settings
            )
        except Exception as error:
            raise EnvironmentFault(
                f'environment "{spec.id}" could not be made in its native version: {told(error)}; {WAY_OUT}'
            ) from error
        if self._envs.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            self.close()
            raise UserError(
                f'environment "{spec.id}" resets one step late in its native version, so some of its steps were never '
                f"taken; {WAY_OUT}"
            )
        try:
            observation_space, self._write = observation_crossing(self._envs.single_observation_space, spec.id)
            if isinstance(self._envs.single_observation_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
                raise UserError(f'environment "{spec.id}" observes a Dict or Tuple in its native version; {WAY_OUT}')
            action_space, self._to_env = action_crossing(self._envs.single_action_space, spec.id)
        except SteppeError:
            self.close()
            raise
        self.description = EnvDescription(observation_space, action_space, limit)
        self._check = NumberCheck(observation_space)
        self._taken = 0

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """Seeds the vectorised object with `seed`."""
        self._taken = 0
        try:
            self._envs.action_space.seed(seed)
            observed, _ = self._envs.reset(seed=seed)
            self._copy(observed, observations, range(len(observations)))
        except Exception as error:
            raise self._fault(error) from error
        self._check(observations, NO_REWARDS, self._named)

    def step(self, actions: np.ndarray, out: StepBuffers) -> bool:
        """As `SyncEnvs.step`."""
        self._taken += 1
        try:
            offered = np.asarray(self._to_env(actions))
            observed, rewards, terminated, truncated, info = self._envs.step(offered)
            out.rewards[:] = rewards
            out.terminated[:] = terminated
            np.logical_and(truncated, ~out.terminated, out=out.truncated)
            ended = np.flatnonzero(out.terminated | out.truncated)
            self._copy(observed, out.next_observations, range(len(out.rewards)))
            if ended.size:
                out.observations[:] = out.next_observations
                self._copy(info["final_obs"], out.next_observations, ended)
        except Exception as error:
            raise self._fault(error) from error
        self._check(out.next_observations, out.rewards, self._named)
        if ended.size:
            self._check(out.observations, NO_REWARDS, self._named)
        return bool(ended.size)

    def close(self) -> None:
        """Closes the vectorised object; may be called again."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()

    def _copy(self, observed: Any, rows: np.ndarray, which: Any) -> None:
        for i in which:
            self._write(observed[i], rows, int(i))

    def _fault(self, error: Exception) -> EnvironmentFault:
        return fault_of(f'environment "{self._id}" (native version)', self._taken, f"raised {told(error)}")

    def _named(self, i: int, what: str) -> EnvironmentFault:
        return fault_of(f'environment "{self._id}" (number {i})', self._taken, what)
