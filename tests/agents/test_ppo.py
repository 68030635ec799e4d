"""Proximal policy optimisation against the same losses in NumPy, differentiated by finite differences."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from steppe.agents._base import Trajectory
from steppe.agents.ppo import shuffled
from steppe.errors import SpecError, UserError
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

BOUNDED = Box((2,), (-1.0,), (1.0,))
ACTIONS = {
    "discrete": (Discrete(3), "auto"),
    "multi-discrete": (MultiDiscrete((2, 3)), "auto"),
    "yes or no": (MultiDiscrete((2, 2)), "bernoulli"),
    "box": (BOUNDED, "auto"),
    "beta": (BOUNDED, "beta"),
}


def log_probs_and_entropy(in_numpy, agent, outputs, log_std, actions):
    """([B], []) of outputs [B, outputs]."""
    space = agent.context.action
    match agent.kind:
        case "gaussian":
            std = np.exp(log_std)
            each = -((actions - outputs) ** 2) / (2 * std**2) - np.log(std * math.sqrt(2 * math.pi))
            return each.sum(-1), np.sum(0.5 * np.log(2 * math.pi * math.e * std**2))
        case "beta":
            alpha, beta = np.split(1 + np.log1p(np.exp(outputs)), 2, -1)
            total, share = alpha + beta, (actions + 1) / 2
            constant = special.betaln(alpha, beta) + math.log(2)
            each = (alpha - 1) * np.log(share) + (beta - 1) * np.log(1 - share) - constant
            digammas = (alpha - 1) * special.digamma(alpha) + (beta - 1) * special.digamma(beta)
            entropy = constant - digammas + (total - 2) * special.digamma(total)
            return each.sum(-1), entropy.sum(-1).mean()
        case "bernoulli":
            yes = 1 / (1 + np.exp(-outputs))
            likely = np.where(actions == 1, yes, 1 - yes)
            entropy = -(yes * np.log(yes) + (1 - yes) * np.log(1 - yes))
            return np.log(likely).sum(-1), entropy.sum(-1).mean()
    choices = (space.n,) if isinstance(space, Discrete) else space.nvec
    columns = actions.reshape(len(outputs), -1)
    total, entropy = 0.0, 0.0
    for i, part in enumerate(np.split(outputs, np.cumsum(choices)[:-1], -1)):
        log_p = in_numpy.log_softmax(part)
        total = total + log_p[np.arange(len(outputs)), columns[:, i]]
        entropy = entropy - (np.exp(log_p) * log_p).sum(-1).mean()
    return total, entropy


def loss_in_numpy(in_numpy, agent, vector, batch):
    """{"loss", "policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction"} (eq. 7 and 9)."""
    settings = agent.settings
    tensors = in_numpy.tensors(agent, vector)
    features = in_numpy.torso(tensors, "policy/", batch.observations)
    outputs = in_numpy.dense(tensors, "policy/head", features)
    value_features = features if settings.share_network else in_numpy.torso(tensors, "value/", batch.observations)
    values = in_numpy.dense(tensors, "value/head", value_features)[:, 0]
    log_std = tensors.get("policy/head/log_std")
    log_probs, entropy = log_probs_and_entropy(in_numpy, agent, outputs, log_std, batch.actions)
    advantages = batch.advantages.astype(np.float64)
    if settings.normalize_advantages:
        advantages = (advantages - advantages.mean()) / advantages.std()
    ratio = np.exp(log_probs - batch.log_probs)
    held = np.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy_loss = -np.mean(np.minimum(ratio * advantages, held * advantages))
    value_loss = np.mean((values - batch.returns) ** 2)
    return {
        "loss": policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": np.mean(ratio - 1 - np.log(ratio)),
        "clip_fraction": np.mean(np.abs(ratio - 1) > settings.clip),
    }


@pytest.mark.parametrize(
    ("action", "share_network"),
    [("discrete", True), ("multi-discrete", False), ("yes or no", False), ("box", False), ("beta", True)],
)
def test_loss_and_gradient_are_those_of_the_paper(make_agent, shaken, random_batch, in_numpy, action, share_network):
    space, distribution = ACTIONS[action]
    agent = make_agent(
        "ppo",
        space,
        distribution=distribution,
        share_network=share_network,
        entropy_coefficient=0.1,
        value_coefficient=0.7,
        normalize_advantages=share_network,
        horizon=8,
    )
    state, batch = shaken(agent), random_batch(space)
    batch = batch._replace(actions=np.tanh(batch.actions)) if distribution == "beta" else batch
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    expected = loss_in_numpy(in_numpy, agent, state.params, batch)
    assert 0.1 < expected["clip_fraction"] < 0.9
    assert set(metrics) == set(expected)
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name
    slope = in_numpy.slope(lambda vector: loss_in_numpy(in_numpy, agent, vector, batch)["loss"], state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)
    assert np.count_nonzero(gradients) > agent.layout.size / 2


@pytest.fixture(scope="module")
def learners(make_agent):
    """{"discrete": (agent, its metrics as one program), ...}, for many batches."""
    made = {}
    for name, (space, distribution) in ACTIONS.items():
        settings = {"distribution": distribution, "share_network": False, "entropy_coefficient": 0.1, "horizon": 8}
        agent = make_agent("ppo", space, **settings)
        made[name] = agent, jax.jit(lambda state, batch, agent=agent: agent.gradients(state, batch)[1])
    return made


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    name=st.sampled_from(sorted(ACTIONS)),
    seed=st.integers(0, 10_000),
    size=st.sampled_from([0.1, 0.4, 1.0]),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_the_loss_of_any_batch_is_that_of_the_paper(learners, random_batch, in_numpy, name, seed, size, scale):
    agent, metrics_of = learners[name]
    state, batch = agent.init(jax.random.key(0)), random_batch(ACTIONS[name][0], seed)
    batch = batch._replace(actions=np.tanh(batch.actions)) if name == "beta" else batch
    batch = batch._replace(advantages=scale * batch.advantages, returns=scale * batch.returns)
    params = np.random.default_rng(seed).normal(0.0, size, state.params.shape).astype(np.float32)
    metrics = metrics_of(state._replace(params=params), batch)
    expected = loss_in_numpy(in_numpy, agent, params, batch)
    # A ratio at the edge of the clip may count as inside or outside.
    for word in set(expected) - {"clip_fraction"}:
        assert metrics[word].item() == pytest.approx(expected[word], rel=1e-3, abs=1e-4), word


logarithms = st.floats(-3, 3, width=32)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(rows=st.lists(st.tuples(logarithms, logarithms, st.floats(-10, 10, width=32)), min_size=6, max_size=6))
def test_a_gain_counts_up_to_the_clip_and_a_loss_from_there_on(learners, rows):
    agent, _ = learners["discrete"]
    loss, _ = agent.policy_loss(*np.array(rows, np.float32).T)
    worth = 0.0
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        held = min(ratio, 1 + agent.settings.clip) if advantage > 0 else max(ratio, 1 - agent.settings.clip)
        worth += held * advantage / len(rows)
    assert float(loss) == pytest.approx(-worth, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("action", ["multi-discrete", "box"])
def test_a_trajectory_becomes_log_probabilities_advantages_and_returns(
    make_agent, shaken, random_trajectory, in_numpy, action
):
    space, _ = ACTIONS[action]
    agent = make_agent("ppo", space, horizon=4, discount=0.9, gae_lambda=0.8)
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    batch = jax.jit(agent.prepare)(state, trajectory)
    tensors = in_numpy.tensors(agent, state.params)

    def values(observations):
        return in_numpy.dense(tensors, "value/head", in_numpy.torso(tensors, "value/", observations))[..., 0]

    now, later = values(trajectory.observations), values(trajectory.next_observations)
    advantages = in_numpy.advantages(trajectory, now, later, 0.9, 0.8)
    outputs = trajectory.outputs.reshape(8, -1)
    actions = trajectory.actions.reshape(8, *trajectory.actions.shape[2:])
    log_std = tensors.get("policy/head/log_std")
    log_probs, _ = log_probs_and_entropy(in_numpy, agent, outputs, log_std, actions)
    np.testing.assert_allclose(batch.advantages, advantages.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        batch.returns, (advantages + values(trajectory.observations)).ravel(), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(batch.log_probs, log_probs, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(batch.observations, trajectory.observations.reshape(8, 3))
    np.testing.assert_array_equal(batch.actions, actions)


def test_one_epoch_of_one_minibatch_is_one_plain_gradient_step(make_agent, shaken, random_trajectory, in_numpy):
    agent = make_agent(
        "ppo",
        Discrete(3),
        horizon=6,
        epochs=1,
        minibatches=1,
        optimizer="gradient_descent",
        max_gradient_norm=None,
        context={"normalize_observations": True},
    )
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    after, metrics = jax.jit(agent.update)(state, trajectory)
    batch = jax.tree.map(np.asarray, jax.jit(agent.prepare)(state, trajectory))
    slope = in_numpy.slope(lambda vector: loss_in_numpy(in_numpy, agent, vector, batch)["loss"], state.params)
    np.testing.assert_allclose(after.params, state.params - 3e-4 * slope, rtol=1e-5, atol=1e-6)
    assert jax.random.key_data(after.key).tolist() != jax.random.key_data(state.key).tolist()
    # The learning policy is still the one that acted: all ratios are 1.
    assert metrics["approximate_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"].item() == 0.0
    # For the same reason the observation statistics are updated only afterwards.
    seen = trajectory.observations.reshape(-1, 3)
    np.testing.assert_allclose(after.observations.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.observations.variance, seen.var(0), rtol=1e-4)


def test_with_equal_advantages_nothing_is_divided_by_zero(make_agent, shaken, random_batch):
    agent = make_agent("ppo", Discrete(3), horizon=8)
    batch = random_batch(Discrete(3))._replace(advantages=np.full(16, 2.0, np.float32))
    gradients, metrics = jax.jit(agent.gradients)(shaken(agent), batch)
    assert np.all(np.isfinite(gradients))
    assert metrics["policy_loss"].item() == pytest.approx(0.0, abs=1e-3)


def test_advantages_far_from_zero_are_standardised_exactly(make_agent, shaken, random_batch, in_numpy):
    agent = make_agent("ppo", Discrete(3), horizon=8)
    advantages = np.random.default_rng(4).normal(-3000.0, 1.0, 16).astype(np.float32)
    state, batch = shaken(agent), random_batch(Discrete(3))._replace(advantages=advantages)
    metrics = jax.jit(agent.gradients)(state, batch)[1]
    expected = loss_in_numpy(in_numpy, agent, state.params, batch)
    assert metrics["policy_loss"].item() == pytest.approx(expected["policy_loss"], rel=0.01)


def test_normalised_rewards_are_divided_by_the_spread_of_the_returns(make_agent, shaken, random_trajectory):
    agents = [
        make_agent("ppo", Discrete(3), horizon=6, context={"normalize_rewards": normalised})
        for normalised in (False, True)
    ]
    state = shaken(agents[0])
    trajectory = random_trajectory(agents[0], state)
    noted = agents[1].update_return_stats(state, trajectory)
    assert noted.returns.variance.item() == pytest.approx(trajectory.running_returns.var(), rel=1e-4)
    scaled = trajectory._replace(rewards=trajectory.rewards / trajectory.running_returns.std())
    expected = jax.jit(agents[0].prepare)(state, scaled).advantages
    np.testing.assert_allclose(jax.jit(agents[1].prepare)(noted, trajectory).advantages, expected, rtol=1e-4, atol=1e-5)
    assert agents[0].update_return_stats(state, trajectory).returns is state.returns


def test_a_linearly_falling_learning_rate_reaches_zero_with_the_last_timestep(make_agent, shaken, random_trajectory):
    agent = make_agent(
        "ppo",
        Discrete(3),
        horizon=6,
        epochs=2,
        minibatches=2,
        learning_rate_decay="linear",
        context={"total_timesteps": 36},
    )
    state = shaken(agent)
    update = jax.jit(agent.update)
    trajectory = random_trajectory(agent, state)
    assert agent.updates_per_rollout == 4
    for count in range(36 // 12):
        before = state
        state, _ = update(state, trajectory)
        assert state.updates == 4 * (count + 1)
        assert np.any(np.asarray(state.params) != np.asarray(before.params))
    np.testing.assert_array_equal(update(state, trajectory)[0].params, state.params)


def test_timesteps_that_cannot_be_cut_into_equal_minibatches_are_refused(make_agent):
    sentence = (
        "^horizon x num_envs = 30 timesteps cannot be cut into 4 equal minibatches; "
        r"change agent\.horizon, agent\.minibatches or num_envs$"
    )
    with pytest.raises(SpecError, match=sentence):
        make_agent("ppo", Discrete(3), num_envs=3, horizon=10, minibatches=4)


@pytest.mark.parametrize(
    ("num_envs", "horizon", "layer", "minibatches"),
    [
        (8, 128, "dense", 16),
        (3, 128, "dense", 12),  # 16 would hold 24 timesteps each
        (1, 128, "dense", 4),
        (1, 16, "dense", 1),
        (1, 1021, "dense", 1),  # a prime number has no equal parts
        (8, 128, "lstm", 4),  # whole sequences
        (6, 8, "lstm", 1),
        (6, 128, "lstm", 3),
    ],
)
def test_a_trajectory_is_cut_into_at_most_16_minibatches_by_itself(make_agent, num_envs, horizon, layer, minibatches):
    network = NetworkSpec([{"type": layer, "size": 3}])
    agent = make_agent("ppo", Discrete(3), network=network, num_envs=num_envs, horizon=horizon)
    samples = num_envs if layer == "lstm" else num_envs * horizon
    assert agent.minibatches_per_epoch == minibatches
    assert agent.minibatches(jax.random.key(0), samples).shape == (10 * minibatches, samples // minibatches)


def test_steps_on_random_parts_take_the_place_of_epochs(make_agent):
    """optimization_steps steps, each on a subsampling_fraction of the timesteps, as in TensorForce."""
    settings = {"optimization_steps": 5, "subsampling_fraction": 0.25, "optimizer": "gradient_descent"}
    agent = make_agent("ppo", Discrete(3), horizon=6, normalize_advantages=False, **settings)
    assert agent.updates_per_rollout == 5
    parts = np.asarray(agent.minibatches(jax.random.key(0), 12))
    assert parts.shape == (5, 3)
    assert all(len(set(part)) == 3 for part in parts.tolist())
    assert len({tuple(sorted(part)) for part in parts.tolist()}) > 1
    tiny = make_agent("ppo", Discrete(3), horizon=6, optimization_steps=2, subsampling_fraction=0.01)
    assert tiny.minibatches(jax.random.key(0), 12).shape == (2, 1)


def test_there_is_one_way_to_cut_a_trajectory(checked):
    with pytest.raises(SpecError, match=r"subsampling_fraction belongs to optimization_steps, which is not given$"):
        checked("ppo", subsampling_fraction=0.3)
    for other in ({"epochs": 2}, {"minibatches": 2}):
        with pytest.raises(SpecError, match=r"give either optimization_steps or epochs and minibatches$"):
            checked("ppo", optimization_steps=5, **other)


def test_normalising_images_is_refused(make_agent):
    with pytest.raises(UserError, match=r"^normalize_observations needs observations of real numbers"):
        make_agent(
            "ppo",
            Discrete(3),
            observation=Box((12, 12, 1), (0.0,), (255.0,), "uint8"),
            network=None,
            context={"normalize_observations": True},
        )


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 100])
def test_shuffled_rows_are_permutations(length):
    rows = np.asarray(shuffled(jax.random.key(0), 5, length))
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(np.sort(rows, -1), np.broadcast_to(np.arange(length), (5, length)))


def test_shuffled_rows_differ_from_each_other_and_from_key_to_key():
    first, second = (np.asarray(shuffled(jax.random.key(seed), 4, 100)) for seed in (0, 1))
    rows = [*first, *second]
    assert len({row.tobytes() for row in rows}) == 8
    # Two independent orders of 100 numbers agree at one position on average.
    assert max(np.sum(a == b) for i, a in enumerate(rows) for b in rows[:i]) < 10
    np.testing.assert_array_equal(first, shuffled(jax.random.key(0), 4, 100))


@pytest.mark.parametrize("length", [5, 8])
def test_every_number_is_equally_likely_in_every_position(length):
    rows = np.asarray(shuffled(jax.random.key(3), 20_000, length))
    counts = np.stack([np.bincount(rows[:, position], minlength=length) for position in range(length)])
    for position in range(length):
        assert stats.chisquare(counts[position]).pvalue > 0.001


def test_every_order_is_equally_likely():
    rows = np.asarray(shuffled(jax.random.key(4), 24_000, 4))
    counts = np.unique(rows @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_rollout_may_be_told_in_timesteps_of_all_environments(make_agent):
    for num_envs, horizon in ((2, 16), (4, 8), (5, 7)):
        agent = make_agent("ppo", Discrete(3), num_envs=num_envs, rollout_timesteps=32, minibatches=1)
        assert agent.horizon == horizon
    sentence = r"^35 timesteps cannot be cut into 4 equal minibatches; change agent.rollout_timesteps \(update_mode\."
    with pytest.raises(SpecError, match=sentence):
        make_agent("ppo", Discrete(3), num_envs=5, rollout_timesteps=32, minibatches=4)


@pytest.mark.parametrize("name", ["ppo", "pqn"])
def test_images_that_are_folded_once_are_learned_from_with_the_same_bits(make_agent, monkeypatch, name):
    space, lead = Box((4, 36, 36), (0.0,), (255.0,), "uint8"), (4, 2)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, *lead, *space.shape), np.uint8)
    floats = rng.normal(size=(2, *lead)).astype(np.float32)
    trajectory = Trajectory(
        observations=images[0],
        actions=rng.integers(0, 3, lead).astype(np.int32),
        rewards=floats[0],
        terminated=np.zeros(lead, bool),
        truncated=np.zeros(lead, bool),
        next_observations=images[1],
        outputs=rng.normal(size=(*lead, 3)).astype(np.float32),
        running_returns=floats[1],
        internals={},
        next_internals={},
    )

    def learned() -> tuple[np.ndarray, bool]:
        agent = make_agent(name, Discrete(3), space, network=None, horizon=4, epochs=2, minibatches=2)
        state = agent.init(jax.random.key(0))
        batch = jax.eval_shape(agent.prepare, state, trajectory)
        return np.asarray(jax.jit(agent.update)(state, trajectory)[0].params), hasattr(batch.observations, "blocks")

    params, is_folded = learned()
    monkeypatch.setattr("steppe.networks.torso.folding_pays", lambda window, strides: False)
    expected, stays_raw = learned()
    assert (is_folded, stays_raw) == (True, False)
    np.testing.assert_array_equal(params, expected)
