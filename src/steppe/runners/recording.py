"""Plays episodes with a policy and keeps them as demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steppe.envs.host import HostEnvs, Step
from steppe.envs.registry import make_jax
from steppe.errors import UserError
from steppe.records.demonstrations import ARRAYS, Demonstrations, form
from steppe.records.policy import Policy
from steppe.runners import keys
from steppe.runners.setup import DEFAULT_EPISODE_LIMIT, is_compiled
from steppe.specs.experiment import ExperimentSpec

TRIES = 20
"""How many episodes are played for each one that is wanted, before too few of them are good enough."""


@dataclass(frozen=True)
class Wish:
    """What is to be recorded."""

    episodes: int
    seed: int = 0
    greedy: bool = True
    """Whether the best action is taken instead of a drawn one."""
    min_return: float | None = None
    """The least return of an episode that is kept."""

    @property
    def most_episodes(self) -> int:
        """How many are played at most."""
        return self.episodes if self.min_return is None else self.episodes * TRIES


@dataclass(frozen=True)
class Recorded:
    """How far it is."""

    played: int
    kept: int
    timesteps: int
    """Of the episodes that were kept."""
    mean_return: float | None
    """Of the episodes that were kept."""
    best_return: float | None
    """Of all that were played."""


def record(
    policy: Policy, spec: ExperimentSpec, wish: Wish, show: Callable[[Recorded], None] = lambda recorded: None
) -> tuple[Demonstrations, Recorded]:
    """Plays in the experiment's environment, one episode after the other, until enough were good enough."""
    rng = np.random.default_rng(wish.seed)
    with _environment(spec) as env:
        _check_fit(policy, env, spec.environment.id)
        kept: list[_Episode] = []
        returns: list[float] = []
        observations = env.reset(wish.seed)
        while len(kept) < wish.episodes and len(returns) < wish.most_episodes:
            episode, observations = _play(policy, env, observations, wish.greedy, rng)
            returns.append(episode.score)
            if wish.min_return is None or episode.score >= wish.min_return:
                kept.append(episode)
            progress = _progress(kept, returns)
            show(progress)
        if not kept:
            raise UserError(
                f"none of {len(returns)} episodes had a return of at least {wish.min_return:g} (the best had "
                f"{max(returns):g}); ask for less with --min-return, or record a better policy"
            )
        columns = ([row[i] for episode in kept for row in episode.rows] for i in range(len(ARRAYS)))
        arrays = {name: np.stack(column) for name, column in zip(ARRAYS, columns, strict=True)}
        mean = float(np.mean([episode.score for episode in kept]))
        spaces = env.observation_space, env.action_space
        return Demonstrations(spec.environment.id, *spaces, arrays, mean), progress


@dataclass(frozen=True)
class _Episode:
    rows: list[tuple[Any, ...]]
    """One tuple for each timestep, in the order of ARRAYS."""
    score: float


def _play(
    policy: Policy, env: Any, observations: np.ndarray, greedy: bool, rng: np.random.Generator
) -> tuple[_Episode, np.ndarray]:
    """(a whole episode, the first observation of the next); observations: [1, ...]."""
    rows, score = [], 0.0
    policy.reset()
    while True:
        # Copies: an environment may hand out the same array again.
        shown = observations[0].copy()
        actions = policy.act(observations, deterministic=greedy, rng=rng)
        step = env.step(actions)
        following = step.next_observations[0].copy()
        rows.append((shown, actions[0], step.rewards[0], step.terminated[0], step.truncated[0], following))
        score += float(step.scores[0])
        observations = step.observations
        if step.finished[0]:
            return _Episode(rows, score), observations
        if step.terminated[0] or step.truncated[0]:
            policy.reset()


def _progress(kept: list[_Episode], returns: list[float]) -> Recorded:
    return Recorded(
        played=len(returns),
        kept=len(kept),
        timesteps=sum(len(episode.rows) for episode in kept),
        mean_return=float(np.mean([episode.score for episode in kept])) if kept else None,
        best_return=max(returns, default=None),
    )


def _check_fit(policy: Policy, env: Any, id: str) -> None:
    """Refuses a policy of other spaces before it acts on something it does not know."""
    description = policy.description
    for what, own, wanted in (
        ("observations", description.shown, env.observation_space),
        ("actions", description.action, env.action_space),
    ):
        if form(own) != form(wanted):
            raise UserError(
                f"the policy was trained in {description.environment or 'another environment'}, whose {what} are not "
                f"those of {id}; give the --environment it was trained in, or another policy"
            )


def _environment(spec: ExperimentSpec) -> Any:
    """One environment that takes actions as policies give them, compiled or not as training would have it."""
    if is_compiled(spec):
        return _Twin(spec)
    limit = spec.max_timesteps_per_episode
    envs = _Host(spec.environment, 1, limit, spec.repeat_actions)
    if limit is None and envs.max_episode_steps is None:
        envs.close()
        envs = _Host(spec.environment, 1, DEFAULT_EPISODE_LIMIT, spec.repeat_actions)
    return envs


class _Host(HostEnvs):
    """A gymnasium environment, whose actions otherwise count from 0."""

    def step(self, actions: np.ndarray) -> Step:
        """One decision; actions: [1, ...]."""
        return super().step(actions - getattr(self.action_space, "start", 0))


class _Twin:
    """One compiled environment with the interface of `HostEnvs`."""

    def __init__(self, spec: ExperimentSpec) -> None:
        import jax

        from steppe.runners.compilation import prepare_jax

        prepare_jax()
        self._env = make_jax(spec.environment)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        limits = [limit for limit in (spec.max_timesteps_per_episode, self._env.max_episode_steps) if limit is not None]
        self._limit = min(limits, default=DEFAULT_EPISODE_LIMIT)
        self._repeat = spec.repeat_actions
        self._state: Any = None
        self._length = 0
        self._reset, self._step = jax.jit(self._env.reset), jax.jit(self._stepped)
        self._observe = jax.jit(self._env.observe)

    def reset(self, seed: int) -> np.ndarray:
        """The first observation, [1, ...]."""

        self._key = keys.make(seed)
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
        truncated = not terminated and self._length >= self._limit
        following = np.asarray(shown)[None]
        observations = self._begin() if terminated or truncated else following
        rewards = np.array([reward], np.float32)
        ended, cut, finished = (np.array([flag]) for flag in (terminated, truncated, terminated or truncated))
        return Step(observations, rewards, ended, cut, following, rewards, finished)

    def __enter__(self) -> _Twin:
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
