"""Deep Q-learning against its errors and losses in NumPy."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from steppe.agents._base import Trajectory, Transitions
from steppe.agents.normalizers import Statistics
from steppe.errors import SpecError, UserError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

VARIANTS = list(itertools.product([False, True], repeat=3))


def random_batch(seed=0, size=12):
    rng = np.random.default_rng(seed)
    return Transitions(
        observations=rng.normal(size=(size, 3)).astype(np.float32),
        actions=rng.integers(0, 4, size).astype(np.int32),
        rewards=rng.normal(0.0, 2.0, size).astype(np.float32),
        # As n-step returns have them: full windows, windows cut by a truncation, and terminated episodes.
        discounts=rng.choice([0.9**3, 0.9, 0.0], size).astype(np.float32),
        next_observations=rng.normal(size=(size, 3)).astype(np.float32),
        weights=rng.uniform(0.2, 1.0, size).astype(np.float32),
    )


def q_values(in_numpy, agent, vector, observations):
    tensors = in_numpy.tensors(agent, vector)
    features = in_numpy.torso(tensors, "", observations)
    if not agent.settings.dueling:
        return in_numpy.dense(tensors, "head", features)
    advantages = in_numpy.dense(tensors, "head/advantage", features)
    return in_numpy.dense(tensors, "head/value", features) + advantages - advantages.mean(-1, keepdims=True)


def errors_in_numpy(in_numpy, agent, vector, state, batch):
    """Q(s, a) - (r + discount * Q_target(s', argmax)), transition by transition."""
    estimates = q_values(in_numpy, agent, vector, batch.observations)
    following = q_values(in_numpy, agent, state.target, batch.next_observations)
    online = q_values(in_numpy, agent, state.params, batch.next_observations)
    errors = []
    for i, action in enumerate(batch.actions):
        best = np.argmax(online[i] if agent.settings.double else following[i])
        errors.append(estimates[i, action] - (batch.rewards[i] + batch.discounts[i] * following[i, best]))
    return np.array(errors)


def loss_in_numpy(in_numpy, agent, vector, state, batch):
    errors = errors_in_numpy(in_numpy, agent, vector, state, batch)
    each = 0.5 * errors**2
    if agent.settings.huber:
        each = np.where(np.abs(errors) <= 1, each, np.abs(errors) - 0.5)
    return np.mean(batch.weights * each)


def with_other_target(state, seed=9):
    """A state whose target network disagrees with the online one about the best action."""
    noise = np.random.default_rng(seed).normal(0.0, 0.7, state.params.shape).astype(np.float32)
    return state._replace(target=state.params + noise)


@pytest.mark.parametrize(("double", "dueling", "huber"), VARIANTS)
def test_errors_loss_and_gradient_are_those_of_the_papers(make_agent, shaken, in_numpy, double, dueling, huber):
    agent = make_agent("dqn", Discrete(4), double=double, dueling=dueling, huber=huber)
    state, batch = with_other_target(shaken(agent)), random_batch()
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    expected = errors_in_numpy(in_numpy, agent, state.params, state, batch)
    assert np.any(np.abs(expected) > 1)
    assert np.any(np.abs(expected) < 1)
    np.testing.assert_allclose(metrics["priorities"], expected, rtol=1e-4, atol=1e-5)
    assert metrics["td_error"].item() == pytest.approx(np.abs(expected).mean(), rel=1e-4)
    loss = loss_in_numpy(in_numpy, agent, state.params, state, batch)
    assert metrics["loss"].item() == pytest.approx(loss, rel=1e-4)
    slope = in_numpy.slope(lambda vector: loss_in_numpy(in_numpy, agent, vector, state, batch), state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)


def test_double_and_plain_really_differ(make_agent, shaken):
    plain, double = (make_agent("dqn", Discrete(4), double=double) for double in (False, True))
    state, batch = with_other_target(shaken(plain)), random_batch()
    assert np.any(np.abs(plain.errors(state.params, state, batch) - double.errors(state.params, state, batch)) > 1e-3)


def test_a_terminated_transition_is_worth_its_reward_alone(make_agent, shaken, in_numpy):
    agent = make_agent("dqn", Discrete(4))
    state = shaken(agent)
    batch = random_batch()._replace(discounts=np.zeros(12, np.float32))
    estimates = q_values(in_numpy, agent, state.params, batch.observations)[np.arange(12), batch.actions]
    errors = agent.errors(state.params, state, batch)
    np.testing.assert_allclose(errors, estimates - batch.rewards, rtol=1e-4, atol=1e-5)


def test_rewards_and_observations_are_normalised_where_asked(make_agent, shaken, in_numpy):
    plain = make_agent("dqn", Discrete(4))
    agent = make_agent(
        "dqn", Discrete(4), situation={"normalize_rewards": True, "normalize_observations": True}, n_step=2
    )
    rng = np.random.default_rng(0)
    observations, rewards = rng.normal(3.0, 2.0, (6, 2, 3)).astype(np.float32), rng.normal(size=(6, 2))
    nothing = np.zeros((6, 2), bool)
    seen = Trajectory(observations, nothing, rewards, nothing, nothing, observations, nothing, rewards)
    state = agent.observe(with_other_target(shaken(agent)), seen)
    mean, std = observations.mean((0, 1)), observations.std((0, 1))
    np.testing.assert_allclose(state.observations.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(state.returns.variance, rewards.var(), rtol=1e-4)
    batch = random_batch()
    scaled = batch._replace(
        observations=(batch.observations - mean) / std,
        next_observations=(batch.next_observations - mean) / std,
        rewards=batch.rewards / rewards.std(),
    )
    expected = errors_in_numpy(in_numpy, plain, state.params, state, scaled)
    np.testing.assert_allclose(agent.errors(state.params, state, batch), expected, rtol=1e-3, atol=1e-4)
    assert isinstance(state.observations, Statistics)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_target_network_moves_only_every_few_updates(make_agent, weight):
    agent = make_agent("dqn", Discrete(4), target_sync_frequency=3, target_update_weight=weight)
    state = agent.init(jax.random.key(0))
    np.testing.assert_array_equal(state.target, state.params)
    update = jax.jit(agent.update)
    for count in range(1, 8):
        target = np.asarray(state.target)
        state, _ = update(state, random_batch(seed=count))
        assert state.updates == count
        if count % 3:
            np.testing.assert_array_equal(state.target, target)
        else:
            moved = target + weight * (np.asarray(state.params) - target)
            np.testing.assert_allclose(state.target, moved, rtol=1e-6, atol=1e-7)
            assert np.any(moved != target)


@pytest.mark.parametrize("as_given", [int, np.int32, jax.numpy.int32], ids=["int", "numpy", "jax"])
def test_exploration_falls_evenly_and_then_stays(make_agent, as_given):
    agent = make_agent("dqn", Discrete(4), initial_exploration=0.9, final_exploration=0.1, exploration_timesteps=1000)
    for timestep, share in [(0, 0.9), (250, 0.7), (500, 0.5), (1000, 0.1), (1001, 0.1), (2**30, 0.1)]:
        assert float(agent.exploration(as_given(timestep))) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(("timestep", "epsilon"), [(0, 1.0), (500, 0.6), (5000, 0.2)])
def test_explored_actions_are_uniform_and_as_many_as_the_schedule_says(make_agent, shaken, timestep, epsilon):
    agent = make_agent("dqn", Discrete(4), final_exploration=0.2, exploration_timesteps=1000)
    acting = agent.acting(shaken(agent))
    observations = np.ones((20_000, 3), np.float32)
    noise = agent.draw_noise(jax.random.key(1), (20_000,))
    actions, values = jax.jit(agent.act)(acting, observations, noise, timestep)
    expected = np.full(4, epsilon / 4)
    expected[np.argmax(values[0])] += 1 - epsilon
    observed = np.bincount(actions, minlength=4)
    assert stats.chisquare(observed, 20_000 * expected).pvalue > 0.01


def test_a_policy_goes_on_exploring_as_the_agent_ended(make_agent, shaken):
    agent = make_agent("dqn", Discrete(4), final_exploration=0.2, dueling=True)
    policy = agent.policy(shaken(agent), 0)
    assert policy.description.head == {"kind": "q_values", "dueling": True, "epsilon": 0.2}
    observations = np.ones((10_000, 3), np.float32)
    best = policy.act(observations[0])
    drawn = policy.act(observations, deterministic=False, rng=np.random.default_rng(0))
    assert np.mean(drawn != best) == pytest.approx(0.2 * 3 / 4, abs=0.015)


@pytest.mark.parametrize(
    ("space", "described"),
    [(Box((2,)), "continuous actions"), (MultiDiscrete((2, 3)), "several discrete actions at once")],
)
def test_other_than_one_discrete_action_is_refused(make_agent, space, described):
    sentence = f'^agent "dqn" needs one discrete action, but Pendulum-v1 has {described}; use "ppo" or "vpg"$'
    with pytest.raises(UserError, match=sentence):
        make_agent("dqn", space, situation={"environment": "Pendulum-v1"})
    with pytest.raises(UserError, match="but the environment has"):
        make_agent("dqn", space)


def test_a_memory_smaller_than_a_batch_is_refused(make_agent):
    with pytest.raises(SpecError, match=r"memory\.capacity 32 is less than batch_size 64"):
        make_agent("dqn", Discrete(4), batch_size=64, memory={"capacity": 32})


def test_an_unknown_kind_of_memory_is_refused_with_the_nearest_word(make_agent):
    with pytest.raises(SpecError, match='did you mean "prioritized_replay"'):
        make_agent("dqn", Discrete(4), memory={"type": "prioritised_replay"})


def test_the_memory_is_built_from_the_settings(make_agent):
    memory = {"type": "prioritized_replay", "capacity": 96, "priority_exponent": 0.5, "importance_exponent": 0.3}
    settings = {"n_step": 4, "discount": 0.8, "update_frequency": 2, "batch_size": 8}
    agent = make_agent("dqn", Discrete(4), num_envs=3, memory=memory, **settings)
    assert agent.horizon == 2
    replay = agent.memory
    assert (replay.capacity, replay.num_envs, replay.horizon, replay.n_step) == (96, 3, 2, 4)
    assert (replay.discount, replay.prioritized) == (0.8, True)
    assert (replay.priority_exponent, replay.importance_exponent) == (0.5, 0.3)
