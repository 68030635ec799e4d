"""Plays episodes with a policy and keeps them as demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.policies.policy import Policy
from steppe.records.demonstrations import ARRAYS, Demonstrations
from steppe.runners.play.evaluation import check_fit, open_environments
from steppe.specs.experiment import ExperimentSpec

TRIES = 20
"""The most episodes played for each one that is wanted."""


@dataclass(frozen=True)
class RecordingRequest:
    """The options of a recording."""

    episodes: int
    seed: int = 0
    greedy: bool = True
    """Whether the best action is taken instead of a random one."""
    min_return: float | None = None
    """The least return of an episode that is kept."""

    @property
    def most_episodes(self) -> int:
        """The most episodes to play."""
        return self.episodes if self.min_return is None else self.episodes * TRIES


@dataclass(frozen=True)
class RecordingProgress:
    """The progress of a recording."""

    played: int
    kept: int
    timesteps: int
    """That of the kept episodes."""
    mean_return: float | None
    """That of the kept episodes."""
    best_return: float | None
    """That of all played episodes."""


def record(
    policy: Policy,
    spec: ExperimentSpec,
    request: RecordingRequest,
    show: Callable[[RecordingProgress], None] = lambda recorded: None,
) -> tuple[Demonstrations, RecordingProgress]:
    """Plays one episode after the other until enough of them have at least the wanted return."""
    rng = np.random.default_rng(request.seed)
    with open_environments(spec) as env:
        check_fit(policy, env, spec.environment.id)
        kept: list[_RecordedEpisode] = []
        returns: list[float] = []
        observations = env.reset(request.seed)
        while len(kept) < request.episodes and len(returns) < request.most_episodes:
            episode, observations = _play(policy, env, observations, request.greedy, rng)
            returns.append(episode.score)
            if request.min_return is None or episode.score >= request.min_return:
                kept.append(episode)
            progress = _progress(kept, returns)
            show(progress)
        if not kept:
            raise UserError(
                f"none of {len(returns)} episodes had a return of at least {request.min_return:g} (the best had "
                f"{max(returns):g}); ask for less with --min-return, or record a better policy"
            )
        columns = ([row[i] for episode in kept for row in episode.rows] for i in range(len(ARRAYS)))
        arrays = {name: np.stack(column) for name, column in zip(ARRAYS, columns, strict=True)}
        mean = float(np.mean([episode.score for episode in kept]))
        spaces = env.observation_space, env.action_space
        return Demonstrations(spec.environment.id, *spaces, arrays, mean), progress


@dataclass(frozen=True)
class _RecordedEpisode:
    rows: list[tuple[Any, ...]]
    """One tuple for each timestep, in the order of ARRAYS."""
    score: float


def _play(
    policy: Policy, env: Any, observations: np.ndarray, greedy: bool, rng: np.random.Generator
) -> tuple[_RecordedEpisode, np.ndarray]:
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
            return _RecordedEpisode(rows, score), observations
        if step.terminated[0] or step.truncated[0]:
            policy.reset()


def _progress(kept: list[_RecordedEpisode], returns: list[float]) -> RecordingProgress:
    return RecordingProgress(
        played=len(returns),
        kept=len(kept),
        timesteps=sum(len(episode.rows) for episode in kept),
        mean_return=float(np.mean([episode.score for episode in kept])) if kept else None,
        best_return=max(returns, default=None),
    )
