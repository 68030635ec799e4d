"""Common parts of policy-gradient agents: values of successors, two optimisers, noise in parameters, several
devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.agents._base import Trajectory
from steppe.errors import SpecError
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

DROPOUT = NetworkSpec([{"type": "dense", "size": 16, "activation": "tanh"}, {"type": "dropout", "rate": 0.5}])
REGULARIZED = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh", "l2_regularization": 0.3}])


def is_policy(agent):
    """A mask [P] of the policy's parameters."""
    start = agent.layout.start_of("value")
    return np.arange(agent.layout.size) < start


@pytest.mark.parametrize("truncates", [False, True])
def test_successors_are_valued_as_what_followed_or_would_have_followed(
    make_agent, shaken, random_trajectory, in_numpy, truncates
):
    agent = make_agent("ppo", Discrete(2), horizon=6, num_envs=3, minibatches=1)
    state = shaken(agent)
    trajectory = random_trajectory(agent, state, ended=0.3)
    trajectory = trajectory._replace(truncated=trajectory.truncated & truncates)
    assert trajectory.terminated[:-1].any()
    assert trajectory.truncated.any() == truncates
    if not truncates:
        # The episodes that were truncated before now continue: the next row is the successor.
        goes_on = ~trajectory.terminated[:-1, :, None]
        trajectory.next_observations[:-1] = np.where(
            goes_on, trajectory.observations[1:], trajectory.next_observations[:-1]
        )
    tensors = in_numpy.tensors(agent, state.params)

    def values(observations):
        return in_numpy.dense(tensors, "value/head", in_numpy.torso(tensors, "value/", observations))[..., 0]

    now, later = values(trajectory.observations), values(trajectory.next_observations)
    expected = in_numpy.advantages(trajectory, now, later, 0.99, 0.95)
    batch = jax.jit(agent.prepare)(state, trajectory)
    np.testing.assert_allclose(batch.advantages.reshape(6, 3), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.returns.reshape(6, 3), expected + now, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def two_optimizers(make_agent):
    """A policy and a value network with one optimiser each."""
    return make_agent(
        "ppo",
        Discrete(3),
        horizon=8,
        optimizer="gradient_descent",
        learning_rate=0.1,
        baseline_optimizer={"type": "gradient_descent", "learning_rate": 0.02},
        max_gradient_norm=None,
        value_coefficient=0.7,
    )


def test_two_optimisers_follow_the_same_gradient_each_at_its_own_rate(make_agent, shaken, random_batch, two_optimizers):
    both = two_optimizers
    one = make_agent(
        "ppo", Discrete(3), horizon=8, optimizer="gradient_descent", max_gradient_norm=None, value_coefficient=0.7
    )
    state, batch = shaken(both), random_batch(Discrete(3))
    expected, plain = jax.jit(one.gradients)(shaken(one), batch)
    gradients, metrics = jax.jit(both.gradients)(state, batch)
    np.testing.assert_allclose(gradients, expected, rtol=1e-4, atol=1e-6)
    assert set(metrics) == set(plain)
    for name in plain:
        assert metrics[name].item() == pytest.approx(plain[name].item(), rel=1e-4, abs=1e-6), name
    rates = np.where(is_policy(both), 0.1, 0.02)
    # Both at once, as in distributed run modes, and one after the other, as in an update.
    applied = jax.jit(both.apply)(state, gradients)
    stepped, _ = jax.jit(both.step)(state, batch)
    for after in (applied, stepped):
        np.testing.assert_allclose(after.params, state.params - rates * np.asarray(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam",
        {"type": "natural_gradient", "cg_max_iterations": 2},
        {"type": "evolutionary", "num_samples": 2},
    ],
    ids=lambda each: each if isinstance(each, str) else each["type"],
)
def test_each_optimiser_leaves_the_parameters_of_the_other_alone(make_agent, shaken, random_batch, optimizer):
    agent = make_agent("vpg", Discrete(3), optimizer=optimizer, baseline_optimizer="adam", learning_rate=0.01)
    policy, value = agent.optimizers
    batch = random_batch(Discrete(3))

    def one_each(state, batch):
        after_policy = policy.apply(state, policy.gradients(state, batch)[0])
        after_value = value.apply(state, value.gradients(state, batch)[0])
        return after_policy.params, after_value.params

    state = shaken(agent)
    after_policy, after_value = jax.jit(one_each)(state, batch)
    mine = is_policy(agent)
    np.testing.assert_array_equal(np.asarray(after_policy)[~mine], np.asarray(state.params)[~mine])
    np.testing.assert_array_equal(np.asarray(after_value)[mine], np.asarray(state.params)[mine])
    assert np.mean(np.asarray(after_policy)[mine] != np.asarray(state.params)[mine]) > 0.9
    assert np.mean(np.asarray(after_value)[~mine] != np.asarray(state.params)[~mine]) > 0.9


def test_an_evolutionary_baseline_leaves_the_policy_alone(make_agent, shaken, random_batch):
    evolutionary = {"type": "evolutionary", "num_samples": 2}
    agent = make_agent("vpg", Discrete(3), baseline_optimizer=evolutionary)
    state, value = shaken(agent), agent.optimizers[1]
    gradients, _ = jax.jit(value.gradients)(state, random_batch(Discrete(3)))
    np.testing.assert_array_equal(np.asarray(gradients)[is_policy(agent)], 0.0)


@pytest.mark.parametrize(
    ("baseline", "names"),
    [
        ({"type": "mlp", "sizes": [5, 6]}, {"0_dense", "1_dense"}),
        ({"type": "network", "network": [{"type": "dense", "size": 7, "activation": "relu"}]}, {"0_dense"}),
        ({"type": "aggregated", "baselines": {"state": {"type": "mlp", "sizes": [5]}}}, {"0_dense"}),
    ],
    ids=lambda each: each["type"] if isinstance(each, dict) else "",
)
def test_a_baseline_has_layers_of_its_own(make_agent, shaken, baseline, names):
    agent = make_agent("ppo", Discrete(2), horizon=4, minibatches=1, baseline=baseline)
    value = agent.layout.split(shaken(agent).params)["value"]
    assert set(value["torso"]) == names
    policy = agent.layout.split(shaken(agent).params)["policy"]
    assert policy["torso"]["0_dense"]["kernel"].shape == (3, 4)


def test_values_that_acting_worked_out_are_those_that_are_learned_from(make_agent, shaken, random_trajectory):
    agent = make_agent("ppo", Discrete(2), horizon=4, minibatches=1, share_network=True)
    assert agent.values_while_acting
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    rows = [agent.act_and_value(agent.actor_params(state), seen, None, 0, {}) for seen in trajectory.observations]
    worth = np.stack([row[3] for row in rows])
    for given, expected in zip(
        agent.trajectory_values(state, trajectory._replace(values=worth)),
        agent.trajectory_values(state, trajectory),
        strict=True,
    ):
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)
    marked = agent.trajectory_values(state, trajectory._replace(values=worth + 1.0))[0]
    np.testing.assert_allclose(marked, worth + 1.0)


@pytest.mark.parametrize(
    "settings", [{"share_network": False}, {"share_network": True, "variable_noise": 0.1}, {"baseline": "none"}]
)
def test_acting_works_no_values_out_where_they_would_be_others(make_agent, settings):
    assert not make_agent("ppo", Discrete(2), horizon=4, minibatches=1, **settings).values_while_acting


def test_the_value_of_a_baseline_is_that_of_its_layers(make_agent, shaken, random_trajectory, in_numpy):
    agent = make_agent("vpg", Discrete(2), horizon=4, baseline={"type": "mlp", "sizes": [5]})
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    values, next_values = jax.jit(agent.trajectory_values)(state, trajectory)
    tensors = in_numpy.tensors(agent, state.params)
    for seen, valued in ((trajectory.observations, values), (trajectory.next_observations, next_values)):
        features = np.maximum(in_numpy.dense(tensors, "value/torso/0_dense", seen), 0.0)
        expected = in_numpy.dense(tensors, "value/head", features)[..., 0]
        # A terminated episode has no successor: the values there are never used.
        used = np.ones_like(expected, bool) if valued is values else ~trajectory.terminated
        np.testing.assert_allclose(np.asarray(valued)[used], expected[used], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"share_network": True, "baseline": {"type": "mlp", "sizes": [4]}},
            "a baseline or baseline_optimizer needs a value network of its own: share_network false",
        ),
        (
            {"baseline_mode": "network", "baseline_optimizer": "adam"},
            'baseline_mode "network" has policy and value network share their layers, so baseline_optimizer has no '
            'place; leave it out, or write "states"',
        ),
        (
            {"optimizer": "natural_gradient"},
            "natural_gradient moves the policy only: give a baseline_optimizer for the value network",
        ),
        (
            {"baseline_optimizer": {"type": "multi_step", "optimizer": "natural_gradient"}},
            "natural_gradient measures steps of a policy, so it cannot be the baseline_optimizer",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(checked, settings, reason):
    with pytest.raises(SpecError) as caught:
        checked("vpg", **settings)
    assert str(caught.value).endswith(f"; {reason}")


def test_a_learning_rate_of_the_baseline_needs_an_optimiser_of_the_baseline(checked):
    with pytest.raises(SpecError, match="baseline_optimizer"):
        checked("vpg", baseline_learning_rate=0.1)


def test_noise_in_the_parameters_is_drawn_anew_for_each_rollout_and_only_for_acting(make_agent, shaken):
    agent = make_agent("vpg", Box((2,)), variable_noise=0.3)
    state = shaken(agent)
    first, again = agent.actor_params(state).params, agent.actor_params(state).params
    later = agent.actor_params(state._replace(updates=state.updates + 1)).params
    np.testing.assert_array_equal(first, again)
    noise = np.stack([first - state.params, later - state.params])
    assert abs(np.corrcoef(noise)[0, 1]) < 0.5
    assert noise.std() == pytest.approx(0.3, rel=0.25)
    np.testing.assert_array_equal(make_agent("vpg", Box((2,))).actor_params(state).params, state.params)
    tensors = agent.policy_tensors(state)
    np.testing.assert_array_equal(tensors["head/bias"], agent.layout.split(state.params)["policy"]["head"]["bias"])


def test_actions_drawn_with_noisy_parameters_have_the_probability_they_were_drawn_with(make_agent, shaken):
    """Gaussian actions are included, whose `log_std` is a noisy parameter too."""
    agent = make_agent("ppo", Box((2,)), horizon=4, minibatches=1, variable_noise=0.5)
    state = shaken(agent)
    actor_params = agent.actor_params(state)
    observations = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    outputs = np.asarray(agent.outputs(actor_params, observations, {})[0])
    zeros, flags = np.zeros((4, 2), np.float32), np.zeros((4, 2), bool)
    drawn = Trajectory(observations, outputs + 1.0, zeros, flags, flags, observations, outputs, zeros, {}, {})
    log_std = np.asarray(agent.log_std(actor_params), np.float64)
    assert np.any(log_std != agent.layout.split(state.params)["policy"]["head"]["log_std"])
    expected = np.sum(-0.5 / np.exp(2 * log_std) - log_std - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(agent.behaviour_log_probs(state, drawn), expected, rtol=1e-4)


def test_dropout_is_drawn_anew_for_each_update_and_off_while_acting(make_agent, shaken, random_batch):
    agent = make_agent("vpg", Discrete(3), network=DROPOUT, normalize_advantages=False)
    state, batch = shaken(agent), random_batch(Discrete(3))
    gradients = jax.jit(agent.gradients)
    first, again = gradients(state, batch)[0], gradients(state, batch)[0]
    later = gradients(state._replace(updates=np.int32(1)), batch)[0]
    np.testing.assert_array_equal(first, again)
    assert np.any(np.abs(first - later) > 1e-3)
    outputs = [agent.outputs(agent.actor_params(state), batch.observations, {})[0] for _ in range(2)]
    np.testing.assert_array_equal(*outputs)


def test_regularised_layers_add_their_penalty_to_the_loss(make_agent, shaken, random_batch):
    plain = make_agent("vpg", Discrete(3))
    agent = make_agent("vpg", Discrete(3), network=REGULARIZED)
    state, batch = shaken(agent), random_batch(Discrete(3))
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    without, plainly = jax.jit(plain.gradients)(state, batch)
    weights = {name: t for name, t in agent.layout.named(np.asarray(state.params)).items() if "torso" in name}
    expected = 0.15 * sum(np.sum(np.square(tensor)) for tensor in weights.values())
    assert metrics["loss"].item() - plainly["loss"].item() == pytest.approx(expected, rel=1e-3)
    difference = agent.layout.named(np.asarray(gradients) - np.asarray(without))
    for name, change in difference.items():
        pulled = 0.3 * weights[name] if name in weights else np.zeros_like(change)
        np.testing.assert_allclose(change, pulled, atol=1e-5)


# The step is so long that devices would shorten it differently if each used only its own samples.
SEARCHED = {
    "optimizer": {"type": "optimized_step", "ls_accept_ratio": 0.7, "optimizer": "gradient_descent"},
    "learning_rate": 2.0,
    "max_gradient_norm": None,
}


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("vpg", {}),
        ("trpo", {"learning_rate": 0.05, "cg_max_iterations": 3}),
        ("vpg", SEARCHED),
        ("pqn", SEARCHED | {"minibatches": 1, "epochs": 1}),
    ],
    ids=["plain", "natural", "searched", "pqn searched"],
)
def test_devices_that_saw_different_timesteps_take_the_same_step(
    make_agent, shaken, random_trajectory, agent, settings
):
    made = make_agent(agent, Discrete(3), horizon=6, **settings)
    state = shaken(made)
    trajectories = [random_trajectory(made, state, seed=seed) for seed in (1, 2)]
    both = jax.tree.map(lambda *leaves: np.stack(leaves), *trajectories)
    made.axis = "devices"
    after, _ = jax.jit(jax.vmap(made.update, in_axes=(None, 0), axis_name="devices"))(state, both)
    np.testing.assert_allclose(after.params[0], after.params[1], rtol=1e-5, atol=1e-6)
    assert np.any(np.asarray(after.params[0]) != np.asarray(state.params))


@pytest.mark.parametrize("agent", ["vpg", "ppo", "trpo", "a2c", "impala"])
def test_without_a_baseline_advantages_are_the_rewards_to_come(make_agent, shaken, random_trajectory, agent):
    cut = {"minibatches": 1} if agent == "ppo" else {}
    agent = make_agent(agent, Discrete(3), horizon=6, baseline="none", discount=0.9, normalize_advantages=False, **cut)
    assert all(name.startswith("policy/") for name in agent.layout.names)
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    expected, following = np.zeros_like(trajectory.rewards), 0.0
    for t in reversed(range(6)):
        goes_on = ~(trajectory.terminated[t] | trajectory.truncated[t])
        expected[t] = following = trajectory.rewards[t] + 0.9 * following * goes_on
    batch = jax.jit(agent.prepare)(state, trajectory)
    np.testing.assert_allclose(batch.advantages.reshape(6, 2), expected, rtol=1e-4, atol=1e-5)
    after, metrics = jax.jit(agent.update)(state, trajectory)
    assert "value_loss" not in metrics
    assert np.isfinite(after.params).all()
    assert not np.array_equal(after.params, state.params)
    assert agent.updates_per_rollout == after.updates


def test_an_evolutionary_optimiser_without_a_baseline_moves_the_whole_policy(make_agent, shaken, random_trajectory):
    agent = make_agent("vpg", Discrete(3), horizon=4, baseline="none", optimizer="evolutionary")
    state = shaken(agent)
    after, _ = jax.jit(agent.update)(state, random_trajectory(agent, state))
    assert np.all(np.asarray(after.params) != np.asarray(state.params))


@pytest.mark.parametrize(
    "settings",
    [{"share_network": True}, {"value_coefficient": 0.1}, {"baseline_optimizer": "adam"}, {"gae_lambda": 0.9}],
)
def test_without_a_baseline_nothing_can_be_said_of_it(checked, settings):
    with pytest.raises(SpecError, match=f"{next(iter(settings))} needs a value network, but baseline is"):
        checked("vpg", baseline="none", **settings)
