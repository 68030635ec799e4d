"""Evaluations against the same episodes, played step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from demonstrated import random_policy, steady_policy
from runs import experiment

from steppe.errors import UserError
from steppe.runners.play.evaluation import FIRST_SEED, NoEpisode, TimeLimit, evaluate, fresh_seed, open_environments
from steppe.specs.spaces import Box, Discrete

GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}
GRID = {"id": "GridWorld-v0", "settings": {"width": 5, "height": 5}}


def place(environment, **fields):
    return experiment(environment, "random", **fields)


def grid_policy():
    with open_environments(place(GRID)) as env:
        return random_policy(env.observation_space, env.action_space)


@pytest.mark.parametrize("environment", ["CartPole-v1", GYMNASIUM], ids=["compiled", "gymnasium"])
def test_the_returns_are_those_that_gymnasium_plays(environment):
    policy = steady_policy(epsilon=0.7)
    found = evaluate(policy, place(environment), episodes=4, seed=3, greedy=False, num_envs=2)
    envs, rng = [gymnasium.make("CartPole-v1") for _ in range(2)], np.random.default_rng(fresh_seed(3))
    seen = np.stack([env.reset(seed=fresh_seed(3) + i)[0] for i, env in enumerate(envs)])
    returns, played = np.zeros(2), []
    left = [2, 2]
    while any(left):
        actions = policy.act(seen, deterministic=False, rng=rng)
        for i, env in enumerate(envs):
            seen[i], reward, terminated, truncated, _ = env.step(actions[i])
            returns[i] += reward
            if terminated or truncated:
                if left[i]:
                    played.append(returns[i])
                    left[i] -= 1
                returns[i], seen[i] = 0.0, env.reset()[0]
    assert list(found.returns) == list(found.lengths) == played
    assert (found.episodes, found.seed, found.greedy, found.environment) == (4, 3, False, "CartPole-v1")


def test_the_experiments_rules_hold():
    spec = place(GYMNASIUM, max_timesteps_per_episode=7, repeat_actions=2)
    found = evaluate(steady_policy(), spec, episodes=5)
    assert (found.returns, found.lengths) == ((14.0,) * 5, (7,) * 5)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_environment_that_only_runs_compiled_is_played_by_its_own_settings(num_envs):
    spec = place(GRID, max_timesteps_per_episode=6)
    found = evaluate(grid_policy(), spec, episodes=7, seed=2, num_envs=num_envs)
    assert found.episodes == 7
    assert all(1 <= length <= 6 for length in found.lengths)
    assert found == evaluate(grid_policy(), spec, episodes=7, seed=2, num_envs=num_envs)


def test_an_environment_without_any_limit_has_one_here():
    env = {"id": "CartPole-v1", "backend": "gymnasium", "settings": {"max_episode_steps": -1}}
    found = evaluate(steady_policy(), place(env), episodes=1)
    assert found.lengths == (1000,)


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others():
    policy = steady_policy(epsilon=0.9)
    first, again, other = (
        evaluate(policy, place(GYMNASIUM), episodes=3, seed=seed, greedy=False).returns for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_evaluations_seeds_differ_from_those_of_the_run():
    # Runs without a seed draw one below FIRST_SEED, and so do evaluations during training.
    seeds = [fresh_seed(seed) for seed in (0, 1, 2, 2**32 - 1)]
    assert len(set(seeds)) == 4
    assert all(FIRST_SEED <= seed < 2**32 - 100 for seed in seeds)


class Watch:
    """A clock that advances by a second at each call."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_in_the_second_half_of_its_time_an_evaluation_only_ends_episodes():
    spec = place(GYMNASIUM, max_timesteps_per_episode=4)
    found = evaluate(steady_policy(), spec, episodes=50, num_envs=1, time_limit=TimeLimit(24.0, clock=Watch()))
    # The clock is read five times per episode, so the third one began within the first 12 s.
    assert (found.episodes, found.lengths) == (3, (4, 4, 4))


def test_without_a_single_episode_there_is_no_evaluation():
    with pytest.raises(NoEpisode, match="no episode of CartPole-v1 ended within 9 s"):
        evaluate(steady_policy(), place(GYMNASIUM), time_limit=TimeLimit(9.0, clock=Watch()))


def test_a_policy_of_other_spaces_is_refused():
    policy = random_policy(Box((3,)), Discrete(2), "Other-v0")
    with pytest.raises(UserError, match=r"trained in Other-v0, whose observations are not those of CartPole-v1"):
        evaluate(policy, place(GYMNASIUM), episodes=1)


@pytest.mark.parametrize(("words", "sentence"), [({"episodes": 0}, "at least 1 episode, not 0"), ({"seed": -1}, "-1")])
def test_invalid_evaluations_are_refused(words, sentence):
    with pytest.raises(UserError, match=sentence):
        evaluate(steady_policy(), place(GYMNASIUM), **words)
