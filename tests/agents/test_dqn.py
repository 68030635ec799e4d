"""Deep Q-learning and its family against errors and losses in NumPy, transition by transition."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.agents.core.normalizers import Statistics
from steppe.agents.dqn import quantile_loss
from steppe.errors import SpecError
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Discrete, MultiDiscrete

FOUR, SEVERAL = Discrete(4), MultiDiscrete((2, 3))
# Each pair of these options is together at least once: double, dueling, quantiles, choices, huber.
VARIANTS = [
    (double, dueling, quantiles, space, huber)
    for (double, dueling, quantiles, space), huber in zip(
        itertools.product([False, True], [False, True], [1, 3], [FOUR, SEVERAL]),
        itertools.cycle([True, False, 0.5, 2.0, False]),
        strict=False,
    )
]


def named(variant):
    double, dueling, quantiles, space, huber = variant
    words = ["double" * double, "dueling" * dueling, f"{quantiles} quantiles", f"huber {huber}"]
    return "-".join([*filter(None, words), "multi" if space is SEVERAL else "single"])


def choices_of(space):
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def q_values(in_numpy, agent, vector, observations):
    """One array [B, options, quantiles] for each choice."""
    tensors, quantiles = in_numpy.tensors(agent, vector), agent.settings.quantiles
    features = in_numpy.torso(tensors, "", observations)
    ends = np.cumsum(choices_of(agent.context.action))[:-1]

    def of_head(name):
        outputs = in_numpy.dense(tensors, name, features)
        return outputs.reshape(len(outputs), -1, quantiles)

    if not agent.settings.dueling:
        return np.split(of_head("head"), ends, 1)
    parts = np.split(of_head("head/advantage"), ends, 1)
    return [of_head("head/value") + part - part.mean(1, keepdims=True) for part in parts]


def huber_of(error, huber):
    if huber is False:
        return 0.5 * error**2
    delta = float(huber)
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - 0.5 * delta)


def quantile_huber(taken, targets, huber):
    """Equation 10 of arXiv:1710.10044: the sum over quantiles i of the mean over samples j."""
    total = 0.0
    for i, estimate in enumerate(taken):
        level = (2 * i + 1) / (2 * len(taken))
        for sample in targets:
            error = sample - estimate
            cost = abs(error) if huber is False else huber_of(error, huber)
            total += abs(level - (error < 0)) * cost / len(targets)
    return total


def losses_in_numpy(in_numpy, agent, vector, state, batch):
    """(loss, absolute error of each transition)."""
    said = agent.settings
    estimates = q_values(in_numpy, agent, vector, batch.observations)
    following = q_values(in_numpy, agent, state.target, batch.next_observations)
    online = q_values(in_numpy, agent, state.params, batch.next_observations)
    each, sizes = [], []
    for b in range(len(batch.rewards)):
        loss, size = 0.0, 0.0
        for choice, chosen in enumerate(np.atleast_1d(batch.actions[b])):
            taken = estimates[choice][b, chosen]
            chooser = (online if said.double else following)[choice][b]
            best = np.argmax(chooser.mean(-1))
            targets = batch.rewards[b] + batch.discounts[b] * following[choice][b, best]
            if said.quantiles == 1:
                loss += huber_of(taken[0] - targets[0], said.huber)
            else:
                loss += quantile_huber(taken, targets, said.huber)
            size += abs(taken.mean() - targets.mean())
        each.append(loss / len(estimates))
        sizes.append(size / len(estimates))
    return np.mean(batch.weights * each), np.array(sizes)


@pytest.mark.parametrize("variant", VARIANTS, ids=named)
def test_errors_loss_and_gradient_are_those_of_the_papers(make_agent, shaken, random_transitions, in_numpy, variant):
    double, dueling, quantiles, space, huber = variant
    agent = make_agent("dqn", space, double=double, dueling=dueling, quantiles=quantiles, huber=huber)
    state, batch = shaken(agent), random_transitions(space)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    loss, errors = losses_in_numpy(in_numpy, agent, state.params, state, batch)
    assert np.any(errors > 1)
    assert np.any(errors < 1)
    np.testing.assert_allclose(metrics["priorities"], errors, rtol=1e-4, atol=1e-5)
    assert metrics["td_error"].item() == pytest.approx(errors.mean(), rel=1e-4)
    assert metrics["loss"].item() == pytest.approx(loss, rel=1e-4)

    def sloped(vector):
        return losses_in_numpy(in_numpy, agent, vector, state, batch)[0]

    np.testing.assert_allclose(gradients, in_numpy.slope(sloped, state.params), rtol=1e-3, atol=3e-5)


def test_the_chooser_matters_where_the_networks_disagree(make_agent, shaken, random_transitions):
    plain, double = (make_agent("dqn", FOUR, double=double) for double in (False, True))
    state, batch = shaken(plain), random_transitions(FOUR)
    sizes = [agent.loss(state.params, state, batch)[1]["priorities"] for agent in (plain, double)]
    assert np.any(np.abs(sizes[0] - sizes[1]) > 1e-3)


@jax.jit
def compiled_quantile_loss(quantiles, targets):
    return quantile_loss(
        quantiles, targets, lambda errors: jnp.where(jnp.abs(errors) <= 1, 0.5 * errors**2, jnp.abs(errors) - 0.5)
    )


@settings(deadline=None, max_examples=40, derandomize=True)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(1, 1), (4, 4), (5, 3)]), spread=st.sampled_from([0.1, 3.0]))
def test_the_quantile_loss_is_its_double_sum(seed, shape, spread):
    rng = np.random.default_rng(seed)
    quantiles, targets = (rng.normal(0.0, spread, (3, 2, count)).astype(np.float32) for count in shape)
    loss = compiled_quantile_loss(quantiles, targets)
    for index in np.ndindex(3, 2):
        expected = quantile_huber(quantiles[index].astype(float), targets[index].astype(float), True)
        assert loss[index].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_quantiles_are_learned_of_what_may_come():
    """Without the Huber loss, the minimum is at the quantiles of the samples."""
    samples = np.random.default_rng(0).gamma(2.0, 1.0, 400).astype(np.float32)

    @jax.jit
    def descend(quantiles):
        slope = jax.grad(lambda q: quantile_loss(q, samples, jnp.abs))

        def step(at, rate):
            return at - rate * slope(at), None

        return jax.lax.scan(step, quantiles, jnp.concatenate([jnp.full(400, 0.3), jnp.full(200, 0.03)]))[0]

    learned = np.asarray(descend(jnp.zeros(5)))
    np.testing.assert_allclose(learned, np.quantile(samples, [0.1, 0.3, 0.5, 0.7, 0.9]), atol=0.08)


def test_a_terminated_transition_is_worth_its_reward_alone(make_agent, shaken, random_transitions, in_numpy):
    agent = make_agent("dqn", FOUR)
    state = shaken(agent)
    batch = random_transitions(FOUR)._replace(discounts=np.zeros(12, np.float32))
    (values,) = q_values(in_numpy, agent, state.params, batch.observations)
    taken = agent.q.chosen(agent.online_values(state.params, state, batch), batch.actions)
    targets = agent.targets(state, batch)
    np.testing.assert_allclose(taken[:, 0, 0], values[np.arange(12), batch.actions, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(targets[:, 0, 0], batch.rewards, rtol=1e-6)


def test_nothing_flows_into_the_targets(make_agent, shaken, random_transitions):
    agent = make_agent("dqn", FOUR, double=True)
    state, batch = shaken(agent), random_transitions(FOUR)

    def total(params):
        # The same parameters in both networks, as in a line search.
        return agent.targets(state._replace(params=params), batch).sum()

    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray(state.params)), 0.0)


def test_rewards_and_observations_are_normalised_where_asked(
    make_agent, shaken, random_transitions, random_trajectory, in_numpy
):
    plain = make_agent("dqn", FOUR)
    context = {"normalize_rewards": True, "normalize_observations": True}
    agent = make_agent("dqn", FOUR, context=context, n_step=2, update_frequency=6)
    seen = random_trajectory(agent, shaken(agent))
    seen = seen._replace(observations=3.0 + 2.0 * seen.observations)
    state = agent.update_stats(shaken(agent), seen)
    mean, std = seen.observations.mean((0, 1)), seen.observations.std((0, 1))
    np.testing.assert_allclose(state.observations.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(state.returns.variance, seen.running_returns.var(), rtol=1e-4)
    assert isinstance(state.observations, Statistics)
    batch = random_transitions(FOUR)
    scaled = batch._replace(
        observations=(batch.observations - mean) / std,
        next_observations=(batch.next_observations - mean) / std,
        rewards=batch.rewards / seen.running_returns.std(),
    )
    _, expected = losses_in_numpy(in_numpy, plain, state.params, state, scaled)
    sizes = agent.loss(state.params, state, batch)[1]["priorities"]
    np.testing.assert_allclose(sizes, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("timestep", "epsilon"), [(0, 1.0), (500, 0.6), (5000, 0.2)])
@pytest.mark.parametrize("space", [FOUR, SEVERAL], ids=["single", "multi"])
def test_explored_actions_are_uniform_and_as_many_as_the_schedule_says(make_agent, shaken, space, timestep, epsilon):
    agent = make_agent("dqn", space, exploration={"type": "epsilon_anneal", "final_epsilon": 0.2, "timesteps": 1000})
    values = np.array([0.1, 0.7, 0.3, -0.2] if space is FOUR else [0.1, 0.7, 0.3, 0.9, -0.2], np.float32)
    noise = np.asarray(agent.draw_noise(jax.random.key(1), (20_000,)))
    actions, _ = agent.choose(np.broadcast_to(values, (20_000, len(values))), noise, timestep, {}, 0.0, np)
    counts = choices_of(space)
    best = [np.argmax(part) for part in np.split(values, np.cumsum(counts)[:-1])]
    # Either all choices of a timestep are random or none.
    joint = np.full(counts, epsilon / np.prod(counts))
    joint[tuple(best)] += 1 - epsilon
    places = np.ravel_multi_index(np.atleast_2d(actions.T), counts)
    observed = np.bincount(places, minlength=joint.size)
    assert stats.chisquare(observed, 20_000 * joint.ravel()).pvalue > 0.01


def test_a_policy_goes_on_exploring_as_the_agent_ended(make_agent, shaken):
    agent = make_agent("dqn", FOUR, exploration={"type": "epsilon_decay", "final_epsilon": 0.2}, dueling=True)
    policy = agent.policy(shaken(agent), 0)
    assert policy.description.head["epsilon"] == 0.2
    observations = np.ones((10_000, 3), np.float32)
    best = policy.act(observations[0])
    drawn = policy.act(observations, deterministic=False, rng=np.random.default_rng(0))
    assert np.mean(drawn != best) == pytest.approx(0.2 * 3 / 4, abs=0.015)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("dqn", {"double": True, "n_step": 3, "quantiles": 1}),
        ("ddqn", {"double": True, "n_step": 1, "quantiles": 1}),
        ("dqn_nstep", {"n_step": 5, "quantiles": 1}),
        ("qr_dqn", {"quantiles": 50}),
    ],
)
def test_the_members_of_the_family_are_settings(checked, agent, expected):
    given = checked(agent).model_dump()
    assert {name: given[name] for name in expected} == expected


def test_rainbow_is_all_of_it_at_once(make_agent, shaken, random_transitions):
    agent = make_agent(
        "dqn",
        FOUR,
        double=True,
        dueling=True,
        n_step=3,
        quantiles=5,
        noisy=True,
        memory={"type": "prioritized_replay", "capacity": 64},
        batch_size=12,
    )
    after, metrics = jax.jit(agent.update)(shaken(agent), random_transitions(FOUR))
    assert np.all(np.isfinite(after.params))
    assert metrics["priorities"].shape == (12,)
    # Noise in the parameters replaces random actions.
    assert agent.exploration(0, np)["epsilon"] == 0.0


def test_a_noisy_network_may_still_be_told_to_explore(checked):
    for word in ("exploration", "actions_exploration"):
        given = checked("dqn", noisy=True, **{word: {"type": "constant", "constant": 0.1}})
        assert given.exploration.epsilon(0, np) == 0.1
    assert checked("dqn", noisy=True).exploration.epsilon(0, np) == 0.0
    assert checked("dqn", noisy=False).exploration.epsilon(0, np) == 1.0


@pytest.mark.parametrize("wrong", ["yes", -1.0, "1", []])
def test_huber_is_true_false_or_a_positive_number(checked, wrong):
    with pytest.raises(SpecError, match="huber"):
        checked("dqn", huber=wrong)
    assert checked("dqn", huber=2).huber == 2.0
    assert checked("dqn", huber=True).huber is True
    assert checked("dqn", huber=False).huber is False


def test_errors_are_squared_by_default_and_those_of_quantiles_huber(checked):
    assert checked("dqn").huber is False
    assert checked("dqn", quantiles=1).huber is False
    assert checked("dqn", quantiles=2).huber is True
    assert checked("qr_dqn").huber is True
    for word in ("huber", "huber_loss"):
        assert checked("dqn", quantiles=2, **{word: False}).huber is False


def test_quantiles_without_huber_are_those_of_absolute_errors(make_agent):
    agent = make_agent("qr_dqn", Discrete(2), quantiles=3, huber_loss=None)
    np.testing.assert_array_equal(agent._cost(jnp.array([-2.0, 0.5])), [2.0, 0.5])
    plain = make_agent("dqn", Discrete(2), huber_loss=None)
    np.testing.assert_array_equal(plain._cost(jnp.array([-2.0, 0.5])), [2.0, 0.125])


def test_a_dueling_layer_and_dueling_false_contradict_each_other(make_agent):
    network = NetworkSpec([{"type": "dense", "size": 4}, {"type": "dueling"}])
    assert make_agent("dqn", Discrete(3), network=network).dueling
    with pytest.raises(SpecError, match=r"agent\.dueling is false, but the network ends in a dueling layer; remove"):
        make_agent("dqn", Discrete(3), network=network, dueling=False)
