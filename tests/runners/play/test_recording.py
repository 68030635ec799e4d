"""Recorded episodes against the same episodes, played step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from demonstrated import random_policy, steady_policy
from runs import experiment

from steppe.errors import UserError
from steppe.policies.policy import Policy, PolicyDescription
from steppe.runners.play.recording import TRIES, RecordingRequest, record
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}


def place(environment, **fields):
    return experiment(environment, "random", **fields)


def test_a_recording_agrees_with_gymnasium():
    policy = steady_policy()
    shown, recorded = record(policy, place(GYMNASIUM), RecordingRequest(episodes=2, seed=3))
    env, t = gymnasium.make("CartPole-v1"), 0
    for seed in (3, None):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            action = policy.act(observation)
            following, reward, terminated, over, _ = env.step(action)
            over = terminated or over
            found = {name: array[t] for name, array in shown.arrays.items()}
            np.testing.assert_array_equal(found["observations"], observation)
            np.testing.assert_array_equal(found["next_observations"], following)
            assert (found["actions"], found["rewards"], found["terminated"]) == (action, reward, terminated)
            assert found["truncated"] == (over and not terminated)
            observation, t = following, t + 1
    env.close()
    assert (len(shown), recorded.timesteps, recorded.kept, recorded.played) == (t, t, 2, 2)
    assert shown.mean_return == recorded.mean_return == t / 2 == 500
    assert shown.environment == "CartPole-v1"


def test_compiled_environments_are_recorded_like_in_training():
    shown, _ = record(steady_policy(), place("CartPole-v1"), RecordingRequest(episodes=2))
    assert len(shown) == 1000
    np.testing.assert_array_equal(np.flatnonzero(shown.arrays["truncated"]), [499, 999])
    assert not shown.arrays["terminated"].any()
    going = ~shown.ended[:-1]
    arrays = shown.arrays
    np.testing.assert_array_equal(arrays["observations"][1:][going], arrays["next_observations"][:-1][going])
    starts = arrays["observations"][[0, 500]]
    assert np.all(np.abs(starts) <= 0.05)
    assert np.any(starts[0] != starts[1])


@pytest.mark.parametrize("environment", ["CartPole-v1", GYMNASIUM], ids=["compiled", "gymnasium"])
def test_the_experiments_rules_hold(environment):
    spec = place(environment, max_timesteps_per_episode=7, repeat_actions=2)
    shown, _ = record(steady_policy(), spec, RecordingRequest(episodes=3))
    assert len(shown) == 21
    assert shown.mean_return == 14
    np.testing.assert_array_equal(shown.arrays["rewards"], 2.0)


@pytest.mark.parametrize("environment", ["CartPole-v1", GYMNASIUM], ids=["compiled", "gymnasium"])
def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(environment):
    policy = steady_policy(epsilon=0.8)
    wishes = [RecordingRequest(episodes=2, seed=seed, greedy=False) for seed in (1, 1, 2)]
    first, again, other = (record(policy, place(environment), wish)[0].arrays for wish in wishes)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert first["observations"][0].tolist() != other["observations"][0].tolist()
    assert len(np.unique(first["actions"])) == 2


def test_only_episodes_that_are_good_enough_are_kept():
    policy, seen = random_policy(Box((4,)), Discrete(2)), []
    shown, recorded = record(policy, place(GYMNASIUM), RecordingRequest(episodes=3, min_return=25), seen.append)
    lengths = np.diff(np.flatnonzero(shown.ended), prepend=-1)
    assert len(lengths) == recorded.kept == 3
    assert lengths.min() >= 25
    assert recorded.played > 3
    assert recorded.mean_return == pytest.approx(lengths.mean())
    assert [each.played for each in seen] == list(range(1, recorded.played + 1))
    assert recorded.best_return == lengths.max()


def test_recording_fails_if_no_episode_is_good_enough():
    seen = []
    with pytest.raises(UserError, match=r"none of 40 episodes had a return of at least 600 \(the best had \d+\); ask"):
        record(
            random_policy(Box((4,)), Discrete(2)), place(GYMNASIUM), RecordingRequest(2, min_return=600), seen.append
        )
    assert len(seen) == 2 * TRIES


def test_fewer_episodes_are_kept_if_few_are_good_enough():
    policy = random_policy(Box((4,)), Discrete(2))
    shown, recorded = record(policy, place(GYMNASIUM), RecordingRequest(episodes=5, min_return=40))
    assert 0 < recorded.kept < 5
    assert recorded.played == 5 * TRIES
    assert shown.ended.sum() == recorded.kept


def test_actions_are_written_as_the_environment_takes_them():
    policy = random_policy(Discrete(2, start=3), Discrete(2, start=5))
    shown, _ = record(policy, place("worlds:Shifted"), RecordingRequest(episodes=4))
    assert (shown.observation, shown.action) == (Discrete(2, start=3), Discrete(2, start=5))
    assert set(shown.arrays["actions"].tolist()) == {5, 6}
    assert set(shown.arrays["observations"].tolist()) == {3, 4}
    right = shown.arrays["actions"] - 5 == shown.arrays["observations"] - 3
    np.testing.assert_array_equal(shown.arrays["rewards"], right.astype(np.float32))


@pytest.mark.parametrize(
    ("world", "action"), [("Several", MultiDiscrete((2, 3, 2))), ("Continuous", Box((1, 2), (-2.0,), (2.0,)))]
)
def test_other_kinds_of_actions_can_be_recorded(world, action):
    shown, _ = record(random_policy(Box((3,)), action), place(f"worlds:{world}"), RecordingRequest(episodes=2))
    assert shown.arrays["actions"].shape == (20, *action.shape)


def test_a_recurrent_policy_is_reset_for_each_episode():
    description = PolicyDescription(
        "ppo", "", 0, Box((3,)), Discrete(2), NetworkSpec([{"type": "lstm", "size": 2}]), {"kind": "categorical"}
    )
    from steppe.policies.policy import tensor_shapes

    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0.0, 2.0, shape) for name, shape in tensor_shapes(description).items()}
    policy = Policy(description, tensors)
    shown, _ = record(policy, place("worlds:World"), RecordingRequest(episodes=6))
    other = Policy(description, tensors)
    for t, (observation, action) in enumerate(zip(shown.arrays["observations"], shown.arrays["actions"], strict=True)):
        if t % 10 == 0:
            other.reset()
        assert other.act(observation) == action


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (random_policy(Box((3,)), Discrete(2), "Other-v0"), "observations"),
        (random_policy(Box((4,)), Discrete(3), "Other-v0"), "actions"),
        (random_policy(Box((4,)), Box((1,)), "Other-v0"), "actions"),
    ],
)
def test_a_policy_of_another_environment_is_refused(policy, what):
    with pytest.raises(UserError, match=f"trained in Other-v0, whose {what} are not those of CartPole-v1"):
        record(policy, place(GYMNASIUM), RecordingRequest(1))
