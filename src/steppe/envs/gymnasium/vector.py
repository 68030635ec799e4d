"""N gymnasium environments stepped together, NumPy in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from steppe.envs.gymnasium._sync import StepBuffers, Stepper, SyncEnvs
from steppe.envs.registry import notices_of_limit, plays_atari
from steppe.envs.spaces import zeros
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Space


class EnvStep(NamedTuple):
    """What one decision in each of N environments led to. The arrays are reused by the second step after this one."""

    observations: np.ndarray
    """[N, ...]: what to act on next; where an episode ended, the first observation of the next one."""
    rewards: np.ndarray
    """Float32 [N]."""
    terminated: np.ndarray
    """Bool [N]: the episode came to its end, and nothing can follow."""
    truncated: np.ndarray
    """Bool [N]: the episode was cut off (and did not terminate at the same time); more could have followed."""
    next_observations: np.ndarray
    """[N, ...]: the true successor, also where an episode ended; the same array as `observations` where none did."""
    scores: np.ndarray
    """Float32 [N]: the rewards before any clipping, of which returns are counted; `rewards` itself where none is."""
    finished: np.ndarray
    """Bool [N]: a whole episode is over; a lost life may be an end for the learner (`terminated`), not of the game."""


class GymnasiumEnvs:
    """Environments of one spec, reset as soon as their episodes end.

    Actions count from 0 on the agent's side, whatever the environment's `start` is, and continuous ones are clipped to
    their bounds. Observations come as they are, but Dict and Tuple observations are flattened. Time limits count
    decisions, each of which lasts `repeat_actions` steps of the environment.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_envs: int,
        max_timesteps_per_episode: int | None = None,
        repeat_actions: int = 1,
        render_mode: str | None = None,
    ) -> None:
        """`render_mode` "human" shows the environments in windows, one after the other in this thread."""
        self.num_envs = num_envs
        self._spec, self._rules = spec, (max_timesteps_per_episode, repeat_actions)
        if render_mode is None:
            self._stepper = _stepper(spec, num_envs, max_timesteps_per_episode, repeat_actions)
        else:
            self._stepper = SyncEnvs(spec, num_envs, max_timesteps_per_episode, repeat_actions, render_mode=render_mode)
        self.observation_space: Space = self._stepper.description.observation_space
        self.action_space: Space = self._stepper.description.action_space
        self.max_episode_steps = self._stepper.description.limit
        self.notices: tuple[str, ...] = (
            *getattr(self._stepper, "notices", ()),
            *notices_of_limit(spec, max_timesteps_per_episode, self.max_episode_steps),
        )
        """What a user should know of how the environment is observed, and when its episodes end."""
        # Two sets in turn, so that what the last step returned is still whole while the next one is taken.
        self._buffers = [allocate(self.observation_space, num_envs) for _ in range(2)]
        # Who has its results in arrays of its own hands them over as they are.
        self._take: Callable[[np.ndarray], EnvStep] | None = getattr(self._stepper, "take", None)
        self._none = np.zeros(num_envs, bool)
        self._none.flags.writeable = False

    def play_by(self, max_timesteps_per_episode: int | None, repeat_actions: int) -> None:
        """Other rules of an episode, from the next `reset` on; environments of this process are not made anew."""
        rules = (max_timesteps_per_episode, repeat_actions)
        if rules == self._rules:
            return
        self._rules = rules
        if isinstance(self._stepper, SyncEnvs):
            self._stepper.play_by(*rules)
        else:
            self._stepper.close()
            self._stepper = _stepper(self._spec, self.num_envs, *rules)
            self._take = getattr(self._stepper, "take", None)
        self.max_episode_steps = self._stepper.description.limit

    def reset(self, seed: int) -> np.ndarray:
        """Starts new episodes, environment i seeded with seed + i, and returns their observations [N, ...]."""
        buffers = self._take_buffers()
        self._stepper.reset(seed, buffers.next_observations)
        return buffers.next_observations

    def step(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; actions: [N, ...]."""
        if self._take is not None:
            return self._take(actions)
        buffers = self._take_buffers()
        any_ended = self._stepper.step(actions, buffers)
        observations, following, rewards, terminated, truncated = buffers
        if any_ended:
            return EnvStep(observations, rewards, terminated, truncated, following, rewards, terminated | truncated)
        return EnvStep(following, rewards, terminated, truncated, following, rewards, self._none)

    def close(self) -> None:
        """Closes the environments and ends their processes; may be called again."""
        self._stepper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_buffers(self) -> StepBuffers:
        self._buffers.reverse()
        return self._buffers[0]


def allocate(space: Space, rows: int) -> StepBuffers:
    """StepBuffers for the results of `rows` environments."""
    return StepBuffers(
        observations=zeros(space, rows),
        next_observations=zeros(space, rows),
        rewards=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
    )


def _stepper(spec: EnvironmentSpec, num_envs: int, max_timesteps: int | None, repeat: int) -> Stepper:
    """The way the spec asks for; "auto" is the loop in this process, which is exact for every environment."""
    if spec.id == "remote":
        from steppe.envs.remote.client import RemoteEnvs

        return RemoteEnvs(spec, num_envs, max_timesteps, repeat)
    if plays_atari(spec):
        from steppe.envs.gymnasium.atari import AtariEnvs

        return AtariEnvs(spec, num_envs, max_timesteps, repeat)
    match spec.vectorization:
        case "processes":
            from steppe.envs.gymnasium._processes import ProcessEnvs

            return ProcessEnvs(spec, num_envs, max_timesteps, repeat)
        case "native":
            from steppe.envs.gymnasium._native import NativeEnvs

            return NativeEnvs(spec, num_envs, max_timesteps, repeat)
        case _:
            return SyncEnvs(spec, num_envs, max_timesteps, repeat)
