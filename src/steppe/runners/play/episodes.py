"""Plays episodes with a policy in separate environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from steppe.envs._base import EpisodesCut
from steppe.policies.policy import Policy
from steppe.runners.play.play_envs import CompiledPlayEnvs, GymnasiumPlayEnvs
from steppe.specs.environment import EnvironmentSpec


class EpisodeRules(NamedTuple):
    """An environment, with the time limit and the action repeat of its episodes."""

    environment: EnvironmentSpec
    max_timesteps: int | None = None
    repeat_actions: int = 1


class PlayedEpisode(NamedTuple):
    """The outcome of one complete episode."""

    score: float
    """The sum of its rewards, before any clipping."""
    length: int


def play(
    policy: Policy, rules: EpisodeRules, width: int, episodes: int, greedy: bool, seed: int
) -> tuple[float, float]:
    """(mean return, mean length) of `episodes` episodes, at most `width` of them at once."""
    done: list[PlayedEpisode] = []
    with GymnasiumPlayEnvs(rules.environment, rules.max_timesteps, rules.repeat_actions, min(episodes, width)) as envs:
        play_episodes(policy, envs, episodes, greedy, seed, done.append)
    return float(np.mean([each.score for each in done])), float(np.mean([each.length for each in done]))


def play_episodes(
    policy: Policy,
    envs: GymnasiumPlayEnvs | CompiledPlayEnvs,
    episodes: int,
    greedy: bool,
    seed: int,
    ended: Callable[[PlayedEpisode], None],
    may_begin: Callable[[], bool] = lambda: True,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Plays whole episodes, and calls `ended` with each.

    No further episode begins once `may_begin` is false. `tick` is called before each timestep, and may raise.
    """
    rng = np.random.default_rng(seed)
    width = envs.num_envs
    returns, lengths = np.zeros(width), np.zeros(width, int)
    # Each environment plays its share, so that quick failures are not over-represented.
    shares = [len(range(i, episodes, width)) for i in range(width)]
    policy.reset()
    observations = envs.reset(seed)
    while any(shares):
        tick()
        actions = policy.act(observations, deterministic=greedy, rng=rng)
        try:
            step = envs.step(actions)
        except EpisodesCut as cut:
            # Interrupted episodes do not count; they are played again.
            returns[:], lengths[:], observations = 0.0, 0, cut.observations
            policy.reset()
            continue
        returns += step.scores
        lengths += 1
        for i in np.flatnonzero(step.finished):
            if shares[i]:
                shares[i] -= 1
                ended(PlayedEpisode(float(returns[i]), int(lengths[i])))
                if shares[i] and not may_begin():
                    shares[i] = 0
            returns[i], lengths[i] = 0.0, 0
        if policy.is_recurrent:
            policy.reset(step.terminated | step.truncated)
        observations = step.observations
