"""A worker acts exactly as the learner's agent would, without JAX."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from benches import Bench
from runs import experiment

from steppe.errors import UserError
from steppe.net.messagepack import Malformed, pack, unpack
from steppe.runners.engines.asynchronous.learner import core_factory
from steppe.runners.engines.asynchronous.wire.board import Board
from steppe.runners.engines.asynchronous.worker.actors import OwnActor, PolicyActor
from steppe.specs.spaces import Box, Discrete

OU = (("exploration", "ornstein_uhlenbeck"),)
CASES = [
    ("sac", "box", "vector", ()),
    ("td3", "box of two axes", "vector", ()),
    ("td3", "box", "normalised", OU),
    ("ddpg", "box", "vector", ()),
    ("sac", "box", "vector", (("drifting_noise", "ornstein_uhlenbeck"),)),
    ("naf", "box", "vector", ()),
    ("dqn", "discrete from 2", "vector", ()),
    ("qr_dqn", "multi-discrete", "vector", ()),
    ("dqn", "discrete", "vector", (("noisy", True),)),
    ("impala", "box", "vector", ()),
    ("impala", "box", "vector", (("variable_noise", 0.3),)),
    ("impala", "discrete from 2", "lstm", (("share_network", True),)),
]


# Each agent is compiled once for all tests.
bench_of = cache(Bench)


def posted(bench, timestep):
    """(task, news) of a learner with this agent, for a worker."""
    spec = experiment("CartPole-v1", {"type": bench.agent.type})
    task = core_factory._task(spec, bench.agent)
    board = Board()
    state = bench.state
    acting = bench.agent.actor_params(state)
    board.post(bench.agent.policy_tensors(state._replace(params=acting.params)), 7)
    board.note(timestep, {name: float(each) for name, each in bench.agent.exploration(timestep, np).items()})
    return task, unpack(pack(board.news(-1, "")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:3])))
@pytest.mark.parametrize("timestep", [0, 5000])
def test_a_worker_chooses_the_same_actions(case, timestep):
    bench = bench_of(*case)
    task, news = posted(bench, timestep)
    actor = PolicyActor(task, bench.action)
    actor.take(news)
    assert actor.version == 7
    noise = np.asarray(bench.agent.draw_noise(jax.random.key(3), (16,)))
    acting = bench.agent.actor_params(bench.state)
    actions, outputs, internals = bench.act(acting, bench.observations, noise, timestep, bench.internals)
    mine, put_out, after = actor.act(bench.observations, noise, dict(bench.internals))
    np.testing.assert_allclose(mine, actions, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(put_out, outputs, rtol=2e-4, atol=2e-5)
    assert after.keys() == internals.keys()
    for name, value in after.items():
        np.testing.assert_allclose(value, internals[name], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(
        actor.to_env_actions(mine), bench.agent.to_env_actions(np.asarray(actions)), rtol=2e-4, atol=2e-5
    )
    greedy, _, _ = bench.act(acting, bench.observations, None, timestep, bench.internals)
    np.testing.assert_allclose(
        actor.act_greedily(bench.observations, dict(bench.internals))[0], greedy, rtol=2e-4, atol=2e-5
    )
    assert {name: value.shape for name, value in actor.initial(4).items()} == {
        name: value.shape for name, value in bench.agent.initial_internals((4,)).items()
    }


def test_a_deterministic_experiment_draws_nothing():
    bench = bench_of("sac", "box", "vector")
    spec = experiment("CartPole-v1", {"type": "sac"}, deterministic=True)
    actor = PolicyActor(core_factory._task(spec, bench.agent), bench.action)
    actor.take(posted(bench, 0)[1])
    noise = actor.draw(2, 16, np.random.default_rng(0))
    actions, _, _ = actor.act(bench.observations, noise[0], {})
    np.testing.assert_array_equal(actions, actor.act_greedily(bench.observations, {})[0])


def test_weights_come_only_with_a_newer_policy_or_another_learner():
    board = Board()
    board.post({"w": np.ones(2)}, 3)
    board.note(10, {"epsilon": 0.5})
    assert "policy" in board.news(-1, "")
    assert board.is_wanted
    assert "policy" not in board.news(3, board.name)
    assert "policy" in board.news(3, "another learner")
    board.post({"w": np.ones(2)}, 4)
    assert not board.is_wanted
    assert "policy" in board.news(3, board.name)
    assert board.news(4, board.name) == {"version": 4, "timestep": 10, "exploration": {"epsilon": 0.5}}


@pytest.mark.parametrize("change", [{"policy": []}, {"policy": {}}, {"version": None}, {"exploration": ["a"]}])
def test_news_that_make_no_sense_are_refused(change):
    bench = bench_of("sac", "box", "vector")
    task, news = posted(bench, 0)
    with pytest.raises(Malformed):
        PolicyActor(task, bench.action).take(news | change)


class Pushes:
    """A policy with only the required methods."""

    def __init__(self):
        self.weights = {}

    def act(self, observations, greedy):
        return np.full((len(observations), 1, 2), self.weights["bias"] * (1 if greedy else 2))

    def set_weights(self, weights):
        self.weights = weights


def test_a_policy_of_ones_own_gets_its_weights_and_acts():
    board = Board()
    board.post({"bias": np.float64(0.25)}, 1)
    policy = Pushes()
    actor = OwnActor(policy, Box((1, 2), (-1.0,), (1.0,)))
    actor.take(unpack(pack(board.news(-1, ""))))
    assert policy.weights["bias"].shape == ()
    actions, outputs, _ = actor.act(np.zeros((3, 4)), None, {})
    assert (actions.shape, actions.dtype, outputs) == ((3, 2), np.float32, None)
    assert actions[0, 0] == 0.5
    assert actor.act_greedily(np.zeros((3, 4)), {})[0][0, 0] == 0.25


def test_a_users_policy_that_returns_too_few_actions_is_an_error():
    policy = Pushes()
    policy.act = lambda observations, greedy: [1]
    with pytest.raises(UserError, match="one action each"):
        OwnActor(policy, Discrete(2)).act(np.zeros((3, 4)), None, {})
    with pytest.raises(UserError, match="needs the method act, which object has not"):
        OwnActor(object(), Discrete(2))
