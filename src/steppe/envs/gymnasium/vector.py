"""N environments of one spec stepped together, NumPy in and out."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self

import numpy as np

from steppe.envs.gymnasium._sync import EnvDescription, StepBuffers, SyncEnvs
from steppe.envs.registry import notices_of_limit, plays_atari
from steppe.envs.spaces import zeros
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Space


class EnvStep(NamedTuple):
    """The results of one decision in each of N environments. The second step after this one reuses the arrays."""

    observations: np.ndarray
    """[N, ...]: the observations to act on next; after the end of an episode, the first one of the next episode."""
    rewards: np.ndarray
    """Float32 [N]."""
    terminated: np.ndarray
    """Bool [N]: the episode reached a final state, which has no successor."""
    truncated: np.ndarray
    """Bool [N]: the episode was cut off (and did not terminate at the same time); it could have continued."""
    next_observations: np.ndarray
    """[N, ...]: the true successors, also at the end of an episode; `observations` itself if no episode ended."""
    scores: np.ndarray
    """Float32 [N]: the rewards before any clipping, which returns are sums of; `rewards` itself without clipping."""
    finished: np.ndarray
    """Bool [N]: a whole episode is over. A lost life may end an episode for the learner (`terminated`) only."""


class Stepper(Protocol):
    """One way to run N environments, which writes results into buffers."""

    description: EnvDescription

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """Starts a new episode in each environment and writes the first observations [N, ...]."""

    def step(self, actions: np.ndarray, out: StepBuffers) -> bool:
        """One decision in each environment; ended episodes are followed at once. Returns whether any ended."""

    def close(self) -> None:
        """Releases everything; may be called again."""


class DirectStepper(Protocol):
    """One way to run N environments, which returns results in arrays of its own."""

    description: EnvDescription

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """As `Stepper.reset`."""

    def take(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; ended episodes are followed at once."""

    def close(self) -> None:
        """As `Stepper.close`."""


class GymnasiumEnvs:
    """Environments of one spec, reset as soon as their episodes end.

    The agent's actions count from 0, whatever the environment's `start` is, and continuous ones are clipped to their
    bounds. Observations are passed on unchanged, but Dict and Tuple observations are flattened. Time limits count
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
            self._use(_stepper(spec, num_envs, max_timesteps_per_episode, repeat_actions))
        else:
            self._use(SyncEnvs(spec, num_envs, max_timesteps_per_episode, repeat_actions, render_mode=render_mode))
        self.observation_space: Space = self._stepper.description.observation_space
        self.action_space: Space = self._stepper.description.action_space
        self.notices: tuple[str, ...] = (
            *getattr(self._stepper, "notices", ()),
            *notices_of_limit(spec, max_timesteps_per_episode, self.max_episode_steps),
        )
        """Sentences for the user on observations that are left out and on limits without effect."""
        # Two sets in turn, so that the results of the last step stay intact during the next one.
        self._buffers = [allocate(self.observation_space, num_envs) for _ in range(2)]
        self._none = np.zeros(num_envs, bool)
        self._none.flags.writeable = False

    def play_by(self, max_timesteps_per_episode: int | None, repeat_actions: int) -> None:
        """Changes the rules of an episode from the next `reset` on; environments of this process are kept."""
        rules = (max_timesteps_per_episode, repeat_actions)
        if rules == self._rules:
            return
        self._rules = rules
        if isinstance(self._stepper, SyncEnvs):
            self._stepper.play_by(*rules)
            self._use(self._stepper)
        else:
            self._stepper.close()
            self._use(_stepper(self._spec, self.num_envs, *rules))

    def reset(self, seed: int) -> np.ndarray:
        """Starts new episodes, environment i seeded with seed + i, and returns their observations [N, ...]."""
        self._buffers.reverse()
        observations = self._buffers[0].next_observations
        self._stepper.reset(seed, observations)
        return observations

    def step(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; actions: [N, ...]."""
        if self._take is not None:
            return self._take(actions)
        self._buffers.reverse()
        buffers = self._buffers[0]
        any_ended = self._stepper.step(actions, buffers)  # type: ignore[union-attr]
        observations, successors, rewards, terminated, truncated = buffers
        if any_ended:
            return EnvStep(observations, rewards, terminated, truncated, successors, rewards, terminated | truncated)
        return EnvStep(successors, rewards, terminated, truncated, successors, rewards, self._none)

    def close(self) -> None:
        """Closes the environments and ends their processes; may be called again."""
        self._stepper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _use(self, stepper: Stepper | DirectStepper) -> None:
        self._stepper = stepper
        self._take = getattr(stepper, "take", None)
        self.max_episode_steps = stepper.description.limit


def allocate(space: Space, rows: int) -> StepBuffers:
    """Buffers for the results of `rows` environments."""
    return StepBuffers(
        observations=zeros(space, rows),
        next_observations=zeros(space, rows),
        rewards=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
    )


def _stepper(spec: EnvironmentSpec, num_envs: int, max_timesteps: int | None, repeat: int) -> Stepper | DirectStepper:
    """The implementation that the spec asks for; "auto" is `SyncEnvs`, which is exact for every environment."""
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
