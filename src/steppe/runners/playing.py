"""Episodes of a policy in host environments of its own, beside any training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from steppe.envs.host import HostEnvs
from steppe.envs.interruption import EpisodesCut
from steppe.records.policy import Policy
from steppe.specs.environment import EnvironmentSpec


class Rules(NamedTuple):
    """Which environment is played, and what an episode is in it."""

    environment: EnvironmentSpec
    max_timesteps: int | None = None
    repeat_actions: int = 1


def play(policy: Policy, rules: Rules, width: int, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
    """(mean return, mean length) of so many episodes, at most `width` of them at once."""
    rng = np.random.default_rng(seed)
    width = min(episodes, width)
    returns, lengths = np.zeros(width), np.zeros(width, int)
    done: list[tuple[float, int]] = []
    # Each environment plays its share, so that quick failures are not over-represented.
    shares = [len(range(i, episodes, width)) for i in range(width)]
    start = getattr(policy.description.action, "start", 0)
    with HostEnvs(rules.environment, width, rules.max_timesteps, rules.repeat_actions) as envs:
        observations = envs.reset(seed)
        while any(shares):
            actions = policy.act(observations, deterministic=greedy, rng=rng) - start
            try:
                step = envs.step(actions)
            except EpisodesCut as cut:
                # Half an episode says nothing; it is played again.
                returns[:], lengths[:], observations = 0.0, 0, cut.observations
                policy.reset()
                continue
            returns += step.scores
            lengths += 1
            for i in np.flatnonzero(step.finished):
                if shares[i]:
                    shares[i] -= 1
                    done.append((returns[i], lengths[i]))
                returns[i], lengths[i] = 0.0, 0
            if policy.is_recurrent:
                policy.reset(step.terminated | step.truncated)
            observations = step.observations
    return float(np.mean([each[0] for each in done])), float(np.mean([each[1] for each in done]))
