"""ddpg and td3 against NumPy: losses, gradients, smoothing and delay."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.specs.spaces import Box

BOUNDED = Box((2,), (-1.0,), (1.0,))


class Networks:
    """The actor and the critics of a parameter vector, in float64."""

    def __init__(self, in_numpy, agent, vector):
        self.tools, self.tensors = in_numpy, in_numpy.tensors(agent, vector)

    def act(self, observations):
        return np.tanh(
            self.tools.dense(self.tensors, "actor/head", self.tools.torso(self.tensors, "actor/", observations))
        )

    def value(self, index, observations, actions):
        inputs = np.concatenate([observations, actions], -1)
        features = self.tools.torso(self.tensors, f"critic_{index}/", inputs)
        return self.tools.dense(self.tensors, f"critic_{index}/head", features)[..., 0]


def loss_in_numpy(in_numpy, agent, vector, state, batch, noise=0.0):
    """(the critics' loss, the actor's loss with fixed critics, errors of the first critic)."""
    moving, frozen = Networks(in_numpy, agent, vector), Networks(in_numpy, agent, state.params)
    target = Networks(in_numpy, agent, state.target)
    next_actions = np.clip(target.act(batch.next_observations) + noise, -1.0, 1.0)
    following = np.min(
        [target.value(index, batch.next_observations, next_actions) for index in range(agent.critics)], 0
    )
    targets = batch.rewards + batch.discounts * following
    errors = [moving.value(index, batch.observations, batch.actions) - targets for index in range(agent.critics)]
    critic_loss = sum(0.5 * np.mean(batch.weights * error**2) for error in errors)
    actor_loss = -np.mean(frozen.value(0, batch.observations, moving.act(batch.observations)))
    return critic_loss, actor_loss, errors[0]


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_loss_and_gradient_are_those_of_the_papers(make_agent, shaken, random_transitions, in_numpy, name):
    settings = {"target_noise": 0.0, "policy_delay": 1} if name == "td3" else {}
    agent = make_agent(name, BOUNDED, **settings)
    state, batch = shaken(agent), random_transitions(BOUNDED)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    critic_loss, actor_loss, errors = loss_in_numpy(in_numpy, agent, state.params, state, batch)
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss, rel=1e-4)
    assert metrics["actor_loss"].item() == pytest.approx(actor_loss, rel=1e-4, abs=1e-5)
    assert metrics["loss"].item() == pytest.approx(critic_loss + actor_loss, rel=1e-4)
    np.testing.assert_allclose(metrics["priorities"], np.abs(errors), rtol=1e-3, atol=1e-5)
    slope = in_numpy.slope(lambda vector: sum(loss_in_numpy(in_numpy, agent, vector, state, batch)[:2]), state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)


@pytest.fixture(scope="module")
def twins(make_agent):
    """(td3, its metrics as one program), for many batches."""
    agent = make_agent("td3", BOUNDED, target_noise=0.3, target_noise_clip=0.4, policy_delay=2)
    return agent, jax.jit(lambda state, batch: agent.gradients(state, batch)[1])


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([0.1, 0.4, 1.0]),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    updates=st.integers(0, 9),
)
def test_the_losses_of_td3_are_those_of_the_paper_for_any_batch(
    twins, random_transitions, in_numpy, seed, size, scale, updates
):
    agent, metrics_of = twins
    batch, state = random_transitions(BOUNDED, seed), agent.init(jax.random.key(seed))
    batch = batch._replace(rewards=scale * batch.rewards)
    params, target = np.random.default_rng(seed).normal(0.0, size, (2, *state.params.shape)).astype(np.float32)
    state = state._replace(params=params, target=target, updates=np.int32(updates))
    drawn = np.asarray(jax.random.normal(jax.random.fold_in(state.key, updates), (12, 2)), np.float64)
    noise = np.clip(0.3 * drawn, -0.4, 0.4)
    metrics = metrics_of(state, batch)
    critic_loss, actor_loss, errors = loss_in_numpy(in_numpy, agent, params, state, batch, noise)
    # The actor moves in every second update.
    actor_loss = actor_loss if updates % 2 else 0.0
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss, rel=1e-3, abs=1e-4)
    assert metrics["actor_loss"].item() == pytest.approx(actor_loss, rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(metrics["priorities"], np.abs(errors), rtol=1e-3, atol=1e-3)


def test_only_the_lower_of_two_critics_counts_for_the_targets(make_agent, shaken, random_transitions, in_numpy):
    agent = make_agent("td3", BOUNDED, target_noise=0.0)
    state, batch = shaken(agent), random_transitions(BOUNDED)
    target = Networks(in_numpy, agent, state.target)
    actions = target.act(batch.next_observations)
    both = np.stack([target.value(index, batch.next_observations, actions) for index in range(2)])
    assert len(set(both.argmin(0))) == 2
    np.testing.assert_allclose(agent.next_values(state, batch), both.min(0), rtol=1e-4, atol=1e-5)


def test_target_actions_are_smoothed_by_clipped_noise(make_agent, shaken, random_transitions, in_numpy):
    agent = make_agent("td3", BOUNDED, target_noise=0.6, target_noise_clip=0.4)
    state = shaken(agent)
    batch = jax.tree.map(lambda leaf: np.repeat(leaf[:1], 4000, 0), random_transitions(BOUNDED))
    following = np.asarray(jax.jit(agent.next_values)(state, batch), np.float64)
    rng = np.random.default_rng(1)
    target = Networks(in_numpy, agent, state.target)
    actions = target.act(batch.next_observations)
    actions = np.clip(actions + np.clip(rng.normal(0.0, 0.6, actions.shape), -0.4, 0.4), -1.0, 1.0)
    expected = np.min([target.value(index, batch.next_observations, actions) for index in range(2)], 0)
    # Rounded, because clipped noise repeats the same few values.
    assert stats.ks_2samp(following.round(4), expected.round(4)).pvalue > 0.01
    assert following.std() > 0.01
    # Each update draws new noise.
    later = jax.jit(agent.next_values)(state._replace(updates=np.int32(1)), batch)
    assert abs(np.corrcoef(following, later)[0, 1]) < 0.1


@pytest.fixture(scope="module")
def delayed(make_agent, shaken, random_transitions):
    """(agent, the states before and after each of seven updates)."""
    agent = make_agent(
        "td3",
        BOUNDED,
        policy_delay=3,
        batch_size=12,
        target_update_weight=0.5,
        critic_learning_rate=2e-3,
        learning_rate=1e-3,
    )
    update, states, metrics = jax.jit(agent.update), [shaken(agent)], []
    for count in range(7):
        state, values = update(states[-1], random_transitions(BOUNDED, seed=count))
        states.append(state)
        metrics.append(values)
    return agent, states, metrics


def test_the_actor_and_the_targets_wait_for_the_critics(delayed):
    agent, states, metrics = delayed
    is_actor = np.arange(agent.layout.size) < agent.first_of_critics
    for count in range(1, 8):
        before, after = (np.asarray(each.params) for each in states[count - 1 : count + 1])
        assert np.any(before[~is_actor] != after[~is_actor])
        moved = np.any(before[is_actor] != after[is_actor])
        assert moved == (count % 3 == 0)
        targets = np.asarray(states[count - 1].target), np.asarray(states[count].target)
        if count % 3:
            np.testing.assert_array_equal(*targets)
            assert metrics[count - 1]["actor_loss"] == 0.0
        else:
            np.testing.assert_allclose(targets[1], targets[0] + 0.5 * (after - targets[0]), rtol=1e-4, atol=1e-6)
            assert metrics[count - 1]["actor_loss"] != 0.0


def test_what_the_actors_optimiser_remembers_waits_too(delayed):
    agent, states, _ = delayed

    def moments(state):
        actor, _ = state.optimizer
        return [np.asarray(leaf) for leaf in jax.tree.leaves(actor) if leaf.shape == (agent.first_of_critics,)]

    assert len(moments(states[0])) == 2
    for first in moments(states[2]):
        np.testing.assert_array_equal(first, 0.0)
    for third, fifth in zip(moments(states[3]), moments(states[5]), strict=True):
        assert np.any(third != 0)
        np.testing.assert_array_equal(third, fifth)


def test_each_step_of_the_actor_is_one_of_adam(make_agent, shaken):
    """The length of Adam's first step is its learning rate, whatever the number of earlier steps of the critics."""
    agent = make_agent("td3", BOUNDED, policy_delay=4, learning_rate=1e-3, critic_learning_rate=1e-3)
    state = shaken(agent)
    gradients = np.random.default_rng(0).normal(size=state.params.shape).astype(np.float32)
    apply = jax.jit(agent.apply)
    for _ in range(4):
        before = state
        state = apply(state, gradients)
    actor = slice(0, agent.first_of_critics)
    step = np.asarray(state.params)[actor] - np.asarray(before.params)[actor]
    np.testing.assert_allclose(step, -1e-3 * np.sign(gradients[actor]), rtol=0.02)


def test_the_actors_learning_rate_reaches_its_end_although_it_waits(make_agent, shaken, random_transitions):
    context = {"total_timesteps": 130}
    settings = {"learning_starts": 32, "batch_size": 32, "learning_rate_decay": "linear", "policy_delay": 2}
    agent = make_agent("td3", BOUNDED, num_envs=1, context=context, optimizer="gradient_descent", **settings)
    state, apply = shaken(agent), jax.jit(agent.apply)
    ones = np.ones(agent.layout.size, np.float32)
    steps = []
    for _ in range(agent.total_updates()):
        before, state = state, apply(state, ones)
        steps.append(float(np.asarray(before.params - state.params)[0]))
    taken = [step for step in steps if step]
    assert len(taken) == agent.total_updates() // 2
    assert taken[-1] < 0.05 * taken[0]
