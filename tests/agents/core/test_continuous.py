"""Common parts of agents with an actor and critics: two learning rates, layers of critics, uniform first actions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from steppe.errors import SpecError, UserError
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Part

BOUNDED = Box((2,), (-1.0,), (1.0,))
AGENTS = ["ddpg", "td3", "sac"]


@pytest.mark.parametrize("agent", ["ddpg", "sac"])
def test_critics_step_at_a_rate_of_their_own(make_agent, shaken, agent):
    made = make_agent(agent, BOUNDED, optimizer="gradient_descent", learning_rate=0.1, critic_learning_rate=0.02)
    state = shaken(made)
    gradients = np.random.default_rng(0).normal(size=state.params.shape).astype(np.float32)
    after = jax.jit(made.apply)(state, gradients)
    steps = made.layout.named(np.asarray(after.params) - state.params)
    for name, step in steps.items():
        if name.startswith("temperature"):
            continue
        rate = 0.1 if name.startswith("actor/") else 0.02
        np.testing.assert_allclose(step, -rate * made.layout.named(gradients)[name], rtol=1e-3, atol=1e-6)


def test_the_rate_of_critics_may_be_written_inside_their_optimiser(checked):
    given = checked("ddpg", critic_optimizer={"type": "adam", "learning_rate": 0.02})
    assert given.critic_learning_rate == 0.02
    assert given.learning_rate == 3e-4
    with pytest.raises(SpecError, match="the learning rate of critic_optimizer is given twice"):
        checked("ddpg", critic_optimizer={"type": "adam", "learning_rate": 0.02}, critic_learning_rate=0.1)


@pytest.mark.parametrize("agent", AGENTS)
def test_critics_may_have_an_optimiser_of_their_own(checked, make_agent, shaken, agent):
    given = {"optimizer": "gradient_descent", "critic_optimizer": {"type": "adam", "learning_rate": 0.1}}
    assert checked(agent, **given).critic_learning_rate == 0.1
    made = make_agent(agent, BOUNDED, **given, learning_rate=0.5, **({"policy_delay": 1} if agent == "td3" else {}))
    state = shaken(made)
    gradients = np.full(state.params.shape, 0.01, np.float32)
    steps = np.asarray(made.apply(state, gradients).params) - np.asarray(state.params)
    # The step of gradient descent is its rate times the gradient; Adam's first step has the length of its rate.
    np.testing.assert_allclose(steps[: made.first_of_critics], -0.005, rtol=1e-3)
    np.testing.assert_allclose(steps[made.first_of_critics :], -0.1, rtol=1e-2)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_critic_optimiser_wraps_no_other(checked, agent):
    with pytest.raises(SpecError, match="wraps the step of actor and critics together"):
        checked(agent, critic_optimizer={"type": "multi_step", "optimizer": "adam"})


def test_actor_and_critics_each_have_their_gradient_shortened(make_agent, shaken):
    made = make_agent(
        "ddpg",
        BOUNDED,
        optimizer="gradient_descent",
        learning_rate=1.0,
        critic_learning_rate=1.0,
        max_gradient_norm=0.5,
    )
    state = shaken(made)
    gradients = np.where(np.arange(state.params.size) < made.first_of_critics, 0.01, 100.0).astype(np.float32)
    change = np.asarray(jax.jit(made.apply)(state, gradients).params) - state.params
    np.testing.assert_allclose(change[: made.first_of_critics], -0.01, rtol=1e-3)
    assert np.linalg.norm(change[made.first_of_critics :]) == pytest.approx(0.5, rel=1e-3)


def test_both_learning_rates_fall_together(make_agent, shaken):
    made = make_agent(
        "ddpg",
        BOUNDED,
        optimizer="gradient_descent",
        learning_rate=0.1,
        critic_learning_rate=0.02,
        learning_rate_decay="linear",
        final_learning_rate=0.05,
        learning_starts=0,
        batch_size=2,
        context={"total_timesteps": 8},
    )
    assert made.total_updates() == 4
    state = shaken(made)
    ones, apply, steps = np.ones_like(state.params), jax.jit(made.apply), []
    for _ in range(6):
        after = apply(state, ones)
        change = np.asarray(after.params) - np.asarray(state.params)
        steps.append((change[0], change[made.first_of_critics]))
        state = after
    shares = 1 - 0.5 * np.minimum(np.arange(6) / 4, 1.0)
    np.testing.assert_allclose(steps, np.outer(-shares, [0.1, 0.02]), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("where", ["network", "critic_network"])
@pytest.mark.parametrize("is_first", [True, False])
def test_dropout_is_refused_wherever_it_stands(make_agent, where, is_first):
    dropout, dense = {"type": "dropout", "rate": 0.5}, {"type": "dense", "size": 4}
    layers = [dropout, dense] if is_first else [dense, dropout]
    given = {"network": NetworkSpec(layers)} if where == "network" else {"critic_network": layers}
    for agent in AGENTS:
        with pytest.raises(SpecError, match=f'agent "{agent}" learns from its own estimates, which dropout blurs'):
            make_agent(agent, BOUNDED, **given)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_evolutionary_optimiser_is_refused(checked, agent, wrapped):
    optimizer = {"type": "multi_step", "optimizer": "evolutionary"} if wrapped else "evolutionary"
    sentence = "an evolutionary optimizer follows one loss, but actor and critics have one each$"
    with pytest.raises(SpecError, match=sentence):
        checked(agent, optimizer=optimizer)


def test_critics_may_have_other_layers(make_agent, shaken):
    made = make_agent("sac", BOUNDED, critic_network=[{"type": "dense", "size": 7}, {"type": "dense", "size": 5}])
    tensors = made.layout.named(shaken(made).params)
    assert tensors["actor/torso/0_dense/kernel"].shape == (3, 4)
    for index in range(2):
        assert tensors[f"critic_{index}/torso/0_dense/kernel"].shape == (3 + 2, 7)
        assert tensors[f"critic_{index}/torso/1_dense/kernel"].shape == (7, 5)


def test_the_action_joins_an_image_after_its_convolutions(make_agent, shaken):
    image = Box((12, 12, 1), (0.0,), (255.0,), "uint8")
    layers = NetworkSpec(
        [{"type": "conv2d", "size": 2, "window": 3, "stride": 2}, {"type": "flatten"}, {"type": "dense", "size": 8}]
    )
    made = make_agent("ddpg", BOUNDED, observation=image, network=layers)
    tensors = made.layout.named(shaken(made).params)
    assert tensors["critic_0/encoder/0_conv2d/kernel"].shape == (3, 3, 1, 2)
    assert tensors["critic_0/torso/0_dense/kernel"].shape == (2 * 6 * 6 + 2, 8)


def branches(*last: Any, **options: Any) -> list[Any]:
    """A critic of TensorForce's examples: a branch for the state, which the action joins."""
    first = [{"type": "input", "names": ["state"]}, {"type": "linear", "size": 6}, {"type": "output", "name": "seen"}]
    join = {"type": "input", "names": ["seen", "action"]} | options
    return [first, [join, *(last or [{"type": "linear", "size": 5}, {"type": "layer_norm"}])]]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_action_joins_where_a_critics_input_reads_it(make_agent, shaken, agent):
    made = make_agent(agent, BOUNDED, critic_network=branches())
    tensors = made.layout.named(shaken(made).params)
    assert tensors["critic_0/encoder/1_linear/kernel"].shape == (3, 6)
    assert tensors["critic_0/torso/0_linear/kernel"].shape == (6 + 2, 5)


@pytest.mark.parametrize(
    ("critic", "words"),
    [
        (branches(aggregation_type="sum"), "joins the observation at the last input layer, by concat"),
        (branches(names=["action"]), "joins the observation at the last input layer"),
        (
            [[{"type": "input", "names": ["action"]}, {"type": "dense", "size": 2}], *branches()],
            "can have no layers of its own before that",
        ),
        ([[{"type": "input", "names": ["state", "action"]}]], "needs a layer after the input"),
    ],
)
def test_an_action_that_cannot_join_there_is_refused(make_agent, critic, words):
    with pytest.raises(UserError, match=words):
        make_agent("ddpg", BOUNDED, critic_network=critic)


def test_critics_need_a_layer_where_the_action_can_join(make_agent):
    layers = NetworkSpec([{"type": "layer_norm"}])
    with pytest.raises(UserError, match="the critics' network needs a dense or linear layer, where the action joins"):
        make_agent("ddpg", BOUNDED, network=layers)


@pytest.mark.parametrize("agent", [*AGENTS, "naf"])
def test_until_learning_starts_actions_come_from_anywhere_in_their_range(make_agent, agent):
    made = make_agent(agent, Box((2,), (-1.0, 2.0), (3.0, 2.5)), learning_starts=50)
    outputs = np.tile(np.array([0.3, 0.3, -2.0, -2.0], np.float32), (8000, 1))
    outputs = outputs if agent == "sac" else outputs[:, :2]
    internals = made.initial_internals((8000,))
    noise = np.asarray(made.draw_noise(jax.random.key(0), (8000,)))
    actions, _ = made.choose(outputs, noise, 49, internals, 0.0, np)
    taken = np.asarray(made.to_environment(actions))
    assert stats.kstest(taken[:, 0], stats.uniform(-1, 4).cdf).pvalue > 0.01
    assert stats.kstest(taken[:, 1], stats.uniform(2, 0.5).cdf).pvalue > 0.01
    later, _ = made.choose(outputs, noise, 50, internals, 0.0, np)
    assert later[:, 0].std() < 0.7 * actions[:, 0].std()


@pytest.mark.parametrize("agent", [*AGENTS, "naf"])
def test_greedy_actions_are_the_middle_of_the_policy_stretched_over_the_bounds(make_agent, agent):
    made = make_agent(agent, Box((2,), (-1.0, 2.0), (3.0, 2.5)))
    outputs = np.array([[0.5, -1.0, 0.2, 0.1][: 4 if agent == "sac" else 2]], np.float32)
    actions, _ = made.choose(outputs, None, 0, made.initial_internals((1,)), 0.0, np)
    np.testing.assert_allclose(actions[0], np.tanh([0.5, -1.0]), rtol=1e-5)
    expected = np.array([-1.0, 2.0]) + (np.tanh([0.5, -1.0]) + 1) / 2 * np.array([4.0, 0.5])
    np.testing.assert_allclose(made.to_environment(actions)[0], expected, rtol=1e-5)


def test_the_policy_leaves_the_critics_behind(make_agent, shaken):
    for agent in AGENTS:
        made = make_agent(agent, BOUNDED)
        assert set(made.policy_tensors(shaken(made))) == {
            "torso/0_dense/kernel",
            "torso/0_dense/bias",
            "head/kernel",
            "head/bias",
        }


@pytest.mark.parametrize("agent", AGENTS)
def test_named_branches_see_the_observation_before_the_action_joins(make_agent, shaken, agent):
    parts = (Part("a", 0, Box((3,))), Part("b", 3, Box((2,))))
    layers = [
        {"type": "input", "names": ["a"]},
        {"type": "dense", "size": 5},
        {"type": "output", "name": "seen"},
        {"type": "input", "names": ["seen", "b"], "aggregation_type": "concat"},
        {"type": "dense", "size": 4},
    ]
    network = NetworkSpec.model_validate(layers)
    made = make_agent(agent, BOUNDED, observation=Box((5,), parts=parts), network=network)
    assert made.encoder.features == 5 + 2
    state = shaken(made)
    values = made.values(made.layout.split(state.params), np.ones((6, 5), np.float32), np.zeros((6, 2), np.float32))
    assert values[0].shape == (6,)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_search_along_the_step_is_refused(checked, agent):
    with pytest.raises(SpecError, match="optimized_step searches along one loss"):
        checked(agent, optimizer={"type": "optimized_step", "optimizer": "adam"})
