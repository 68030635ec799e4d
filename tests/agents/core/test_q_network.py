"""Values of every action: dueling and noisy heads, quantiles, and their form in a policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.agents.core.q_network import QNetwork
from steppe.errors import UserError
from steppe.networks import Network
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

NETWORK = Network(NetworkSpec([{"type": "dense", "size": 6, "activation": "tanh"}]), Box((3,)))
OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def made(action, dueling=False, quantiles=1, noisy=False, seed=0):
    """(network, its parameters, none near zero)."""
    network = QNetwork(NETWORK, action, dueling, quantiles, noisy)
    rng = np.random.default_rng(seed)
    params = network.draw_params(rng)
    return network, jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), params)


def test_dueling_advantages_of_each_choice_have_mean_zero():
    network, params = made(MultiDiscrete((2, 3)), dueling=True, quantiles=4)
    values = np.asarray(network.values(params, OBSERVATIONS))
    assert values.shape == (5, 5, 4)
    features = np.tanh(OBSERVATIONS @ params["torso"]["0_dense"]["kernel"] + params["torso"]["0_dense"]["bias"])
    value = features @ params["head"]["value"]["kernel"] + params["head"]["value"]["bias"]
    for part in (values[:, :2], values[:, 2:]):
        np.testing.assert_allclose(part.mean(1), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", [Discrete(4), MultiDiscrete((2, 3))], ids=["single", "multi"])
def test_the_values_of_taken_and_best_actions_are_looked_up(action):
    network, params = made(action, quantiles=3)
    values = np.asarray(network.values(params, OBSERVATIONS))
    counts = (4,) if isinstance(action, Discrete) else action.nvec
    starts = [0, *np.cumsum(counts)[:-1]]
    rng = np.random.default_rng(1)
    actions = np.stack([rng.integers(0, n, 5) for n in counts], -1)
    given = actions[:, 0] if isinstance(action, Discrete) else actions
    taken, best = np.asarray(network.chosen(values, given)), np.asarray(network.best(values)).reshape(5, -1)
    assert taken.shape == (5, len(counts), 3)
    for b in range(5):
        for choice, (start, n) in enumerate(zip(starts, counts, strict=True)):
            np.testing.assert_array_equal(taken[b, choice], values[b, start + actions[b, choice]])
            means = values[b, start : start + n].mean(-1)
            assert best[b, choice] == np.argmax(means)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_policy_of_means_over_quantiles_puts_out_the_means(make_agent, shaken, dueling):
    agent = make_agent("qr_dqn", MultiDiscrete((2, 3)), quantiles=4, dueling=dueling)
    state = shaken(agent)
    outputs = agent.policy(state, 0).outputs(OBSERVATIONS)
    values = agent.q.values(agent.layout.split(state.params), OBSERVATIONS)
    np.testing.assert_allclose(outputs, values.mean(-1), rtol=1e-4, atol=1e-5)


def test_noise_is_factorised_and_scaled_by_learned_spreads():
    """Equations 10 and 11 of arXiv:1706.10295: w + sigma * f(e_in) f(e_out), b + sigma * f(e_out)."""
    network, params = made(Discrete(4), quantiles=2, noisy=True)
    noisy = jax.tree.map(np.asarray, network.perturbed(params, jax.random.key(3)))
    head, shaken = params["head"], noisy["head"]
    out_of = (shaken["bias"] - head["bias"]) / head["bias_sigma"]
    both = (shaken["kernel"] - head["kernel"]) / head["kernel_sigma"]
    assert both.shape == (6, 8)
    into = both[:, 0] / out_of[0]
    np.testing.assert_allclose(both, np.outer(into, out_of), rtol=1e-2, atol=1e-3)
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(noisy["torso"]["0_dense"][name], params["torso"]["0_dense"][name])


def test_noise_has_the_moments_of_the_paper():
    """f(x) = sign(x) sqrt|x| of a normal x: mean 0 and variance E|x| = sqrt(2 / pi)."""
    network, params = made(Discrete(4), noisy=True)
    draw = jax.jit(jax.vmap(lambda key: network.perturbed(params, key)["head"]))
    heads = draw(jax.random.split(jax.random.key(0), 4000))
    out_of = (np.asarray(heads["bias"]) - params["head"]["bias"]) / params["head"]["bias_sigma"]
    both = (np.asarray(heads["kernel"]) - params["head"]["kernel"]) / params["head"]["kernel_sigma"]
    assert abs(out_of.mean()) < 0.03
    assert out_of.var() == pytest.approx(np.sqrt(2 / np.pi), rel=0.03)
    assert abs(both.mean()) < 0.03
    assert both.var() == pytest.approx(2 / np.pi, rel=0.05)


def test_heads_have_noise_of_their_own():
    network, params = made(Discrete(4), dueling=True, noisy=True)
    noisy = network.perturbed(params, jax.random.key(3))["head"]
    shifts = {
        name: (np.asarray(noisy[name]["bias"]) - params["head"][name]["bias"]) / params["head"][name]["bias_sigma"]
        for name in ("advantage", "value")
    }
    assert not np.any(np.isclose(shifts["advantage"], shifts["value"][0]))


def test_the_spreads_begin_as_in_the_paper_and_learn(make_agent, shaken, random_transitions):
    agent = make_agent("dqn", Discrete(4), noisy=True)
    head = agent.layout.split(agent.init(jax.random.key(0)).params)["head"]
    for name in ("kernel_sigma", "bias_sigma"):
        np.testing.assert_allclose(head[name], 0.5 / np.sqrt(4))
    gradients, _ = jax.jit(agent.gradients)(shaken(agent), random_transitions(Discrete(4)))
    learned = agent.layout.named(np.asarray(gradients))
    assert np.all(learned["head/bias_sigma"] != 0)
    assert np.mean(learned["head/kernel_sigma"] != 0) > 0.9


def test_acting_noise_stays_within_a_rollout_and_changes_with_every_update(make_agent, shaken):
    agent = make_agent("dqn", Discrete(4), noisy=True)
    state = shaken(agent)
    first, again = agent.actor_params(state).params, agent.actor_params(state).params
    other = agent.actor_params(state._replace(updates=np.int32(1))).params
    np.testing.assert_array_equal(first, again)
    assert np.any(np.asarray(first) != np.asarray(other))
    moved = agent.layout.named(np.asarray(first) - state.params)
    assert {name for name, change in moved.items() if np.any(change != 0)} == {"head/kernel", "head/bias"}
    tensors = agent.policy_tensors(state)
    assert not any(name.endswith("_sigma") for name in tensors)
    np.testing.assert_array_equal(tensors["head/kernel"], agent.layout.named(state.params)["head/kernel"])


def test_the_two_networks_of_an_error_are_perturbed_independently(make_agent, shaken, random_transitions):
    agent = make_agent("dqn", Discrete(4), noisy=True, double=False)
    state = shaken(agent)
    state = state._replace(target=state.params)
    batch = random_transitions(Discrete(4))
    batch = batch._replace(
        next_observations=batch.observations, rewards=np.zeros(12, np.float32), discounts=np.ones(12, np.float32)
    )
    taken = agent.q.chosen(agent.online_values(jnp.asarray(state.params), state, batch), batch.actions)
    targets = agent.targets(state, batch)
    best = agent.q.values(agent.layout.split(state.params), batch.observations)[..., 0].max(-1)
    assert np.any(np.abs(targets[:, 0, 0] - best) > 1e-3)
    greedy = batch.actions == np.asarray(
        agent.q.best(agent.q.values(agent.layout.split(state.params), batch.observations))
    )
    assert np.all(np.abs(taken - targets)[greedy] > 1e-6)


DUELING = [{"type": "dense", "size": 4, "activation": "tanh"}, {"type": "dueling", "size": 4}]


@pytest.mark.parametrize("agent", ["dqn", "pqn"])
def test_a_dueling_layer_at_the_end_of_the_network_is_the_setting(make_agent, shaken, agent):
    settings = {"horizon": 4, "minibatches": 1} if agent == "pqn" else {}
    written = make_agent(agent, Discrete(4), network=NetworkSpec(DUELING), **settings)
    said = make_agent(agent, Discrete(4), dueling=True, **settings)
    assert written.layout.names == said.layout.names
    state = shaken(said)
    outputs = [made.policy(state, 0).outputs(OBSERVATIONS) for made in (written, said)]
    np.testing.assert_array_equal(*outputs)


def test_a_dueling_layer_of_another_size_than_the_actions_is_refused(make_agent):
    sentence = r'^the network ends in a dueling layer of size 4, but agent "dqn" has 5 actions to value; leave out its'
    for space in (Discrete(5), MultiDiscrete((2, 3))):
        with pytest.raises(UserError, match=sentence):
            make_agent("dqn", space, network=NetworkSpec(DUELING))
