"""Recurrent policies: the state is carried, reset at the ends of episodes, and differentiated through time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.agents._base import Trajectory
from steppe.envs.compiled.cartpole import CartPoleV1
from steppe.errors import SpecError
from steppe.runners.engines.compiled.rollout import Rollout
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

LSTM = NetworkSpec([{"type": "lstm", "size": 3}])
GRU = NetworkSpec([{"type": "gru", "size": 3}])
NETWORKS = {"lstm": LSTM, "gru": GRU}
T, N = 6, 2
ENDED = np.zeros((T, N), bool)
ENDED[1, 0] = ENDED[3, 1] = ENDED[4, 0] = True


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(kind, tensors, name, x, state):
    """One timestep in float64: (output, state) of inputs [N, F] after a state of [N, H] each."""
    kernel, recurrent, bias = (tensors[f"{name}/{part}"] for part in ("kernel", "recurrent_kernel", "bias"))
    if kind == "lstm":
        hidden, memory = state
        i, f, g, o = np.split(x @ kernel + hidden @ recurrent + bias, 4, -1)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(memory)
        return hidden, (hidden, memory)
    (hidden,) = state
    xr, xz, xn = np.split(x @ kernel + bias, 3, -1)
    hr, hz, hn = np.split(hidden @ recurrent, 3, -1)
    reset, update = sigmoid(xr + hr), sigmoid(xz + hz)
    candidate = np.tanh(xn + reset * (hn + tensors[f"{name}/recurrent_bias"]))
    hidden = (1 - update) * candidate + update * hidden
    return hidden, (hidden,)


def unrolled(kind, tensors, prefix, observations, state, ended=ENDED):
    """(features [T, N, H], states before each timestep, states after it), episode by episode."""
    features, before, after = [], [], []
    for t, seen in enumerate(observations):
        before.append(state)
        out, state = cell(kind, tensors, f"{prefix}torso/0_{kind}", seen, state)
        features.append(out)
        after.append(state)
        state = tuple(np.where(ended[t][:, None], 0.0, each) for each in state)
    return np.array(features), before, after


def start(kind, seed=5):
    """The state before the first timestep, [N, 3] each: the rollout begins within an episode."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(0.0, 0.5, (N, 3)) for _ in range(2 if kind == "lstm" else 1))


def internals_of(kind, policy, value):
    """States by the agent's names, from lists over time of tuples."""
    parts = ("hidden", "cell") if kind == "lstm" else ("hidden",)
    named = {}
    for prefix, states in (("", policy), ("value/", value)):
        for index, part in enumerate(parts):
            leaves = np.array([state[index] for state in states], np.float32)
            named[f"{prefix}0_{kind}/{part}"] = leaves
    return named


class Played:
    """A rollout of a recurrent policy, computed in NumPy; it has parts of some episodes and the whole of others."""

    def __init__(self, agent, state, kind, in_numpy, seed=2):
        rng = np.random.default_rng(seed)
        self.tensors = in_numpy.tensors(agent, state.params)
        self.observations, self.following = rng.normal(size=(2, T, N, 3)).astype(np.float32)
        self.following[:-1] = np.where(ENDED[:-1, :, None], self.following[:-1], self.observations[1:])
        features, before, after = unrolled(kind, self.tensors, "policy/", self.observations, start(kind))
        self.outputs = in_numpy.dense(self.tensors, "policy/head", features)
        features, value_before, value_after = unrolled(kind, self.tensors, "value/", self.observations, start(kind, 6))
        self.values = in_numpy.dense(self.tensors, "value/head", features)[..., 0]
        # Successors are valued with the state after the timestep, even if the episode was truncated there.
        following = [
            cell(kind, self.tensors, f"value/torso/0_{kind}", seen, state)[0]
            for seen, state in zip(self.following, value_after, strict=True)
        ]
        self.next_values = in_numpy.dense(self.tensors, "value/head", np.array(following))[..., 0]
        self.trajectory = Trajectory(
            observations=self.observations,
            actions=rng.integers(0, 3, (T, N)).astype(np.int32),
            rewards=rng.normal(size=(T, N)).astype(np.float32),
            terminated=ENDED & (np.arange(T) == 1)[:, None],
            truncated=ENDED & (np.arange(T) != 1)[:, None],
            next_observations=self.following,
            outputs=self.outputs.astype(np.float32),
            running_returns=np.zeros((T, N), np.float32),
            internals=internals_of(kind, before, value_before),
            next_internals=internals_of(kind, after, value_after),
        )


@pytest.fixture(scope="module", params=NETWORKS)
def played(request, make_agent, shaken, in_numpy):
    kind = request.param
    settings = {"horizon": T, "normalize_advantages": False, "entropy_coefficient": 0.1, "gae_lambda": 0.9}
    agent = make_agent("vpg", Discrete(3), network=NETWORKS[kind], **settings)
    state = shaken(agent)
    return agent, state, Played(agent, state, kind, in_numpy), kind


def test_each_network_remembers_for_itself(played):
    agent, _, one, _ = played
    assert agent.is_recurrent
    initial = agent.initial_internals((N,))
    assert set(initial) == set(one.trajectory.internals)
    for leaf in initial.values():
        np.testing.assert_array_equal(leaf, np.zeros((N, 3)))


def test_acting_carries_what_is_remembered(played):
    agent, state, one, _ = played
    act = jax.jit(agent.act)
    internals = {name: leaf[0] for name, leaf in one.trajectory.internals.items()}
    noise = np.asarray(agent.draw_noise(jax.random.key(0), (T, N)))
    for t in range(T):
        _, outputs, internals = act(agent.actor_params(state), one.observations[t], noise[t], 0, internals)
        np.testing.assert_allclose(outputs, one.outputs[t], rtol=1e-4, atol=1e-5)
        for name, leaf in internals.items():
            np.testing.assert_allclose(leaf, one.trajectory.next_internals[name][t], rtol=1e-4, atol=1e-5)
        internals = {name: np.where(ENDED[t][:, None], 0.0, leaf) for name, leaf in internals.items()}


def test_successors_are_valued_with_what_was_remembered_of_their_episode(played, in_numpy):
    agent, state, one, _ = played
    batch = jax.jit(agent.prepare)(state, one.trajectory)
    expected = in_numpy.advantages(one.trajectory, one.values, one.next_values, 0.99, 0.9)
    np.testing.assert_allclose(batch.advantages, expected.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.returns, (expected + one.values).T, rtol=1e-4, atol=1e-5)
    # One sequence for each environment, with the state before its first timestep.
    np.testing.assert_array_equal(batch.observations, np.swapaxes(one.observations, 0, 1))
    np.testing.assert_array_equal(batch.is_first[:, 1:], ENDED.T[:, :-1])
    assert not np.any(batch.is_first[:, 0])
    for name, leaf in batch.internals.items():
        np.testing.assert_array_equal(leaf, one.trajectory.internals[name][0])


def loss_in_numpy(in_numpy, agent, kind, vector, one, batch):
    """The policy gradient's loss, unrolled from the state at the start of the rollout."""
    settings = agent.settings
    tensors = in_numpy.tensors(agent, vector)
    features, _, _ = unrolled(kind, tensors, "policy/", one.observations, start(kind))
    log_p = in_numpy.log_softmax(in_numpy.dense(tensors, "policy/head", features))
    log_probs = np.take_along_axis(log_p, one.trajectory.actions[..., None], -1)[..., 0]
    features, _, _ = unrolled(kind, tensors, "value/", one.observations, start(kind, 6))
    values = in_numpy.dense(tensors, "value/head", features)[..., 0]
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    policy_loss = -np.mean(log_probs * np.asarray(batch.advantages).T)
    value_loss = np.mean((values - np.asarray(batch.returns).T) ** 2)
    return policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy


def test_the_gradient_goes_through_time_and_stops_where_an_episode_begins(played, in_numpy):
    agent, state, one, kind = played
    batch = jax.jit(agent.prepare)(state, one.trajectory)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)

    def loss(vector):
        return loss_in_numpy(in_numpy, agent, kind, vector, one, batch)

    assert metrics["loss"].item() == pytest.approx(loss(state.params), rel=1e-4)
    np.testing.assert_allclose(gradients, in_numpy.slope(loss, state.params), rtol=1e-3, atol=2e-5)


def test_sequences_cut_in_two_give_the_outputs_of_the_whole(played):
    """A rollout that begins within an episode continues from the last state of the previous one."""
    agent, state, one, _ = played
    batch = jax.tree.map(np.asarray, jax.jit(agent.prepare)(state, one.trajectory))
    policy = agent.layout.split(state.params)["policy"]["torso"]
    whole = agent.network.unroll(
        policy, one.observations, {name: leaf[0] for name, leaf in one.trajectory.internals.items()}, batch.is_first.T
    )[0]
    middle = {name: leaf[3] for name, leaf in one.trajectory.internals.items()}
    is_first = batch.is_first.T[3:].copy()
    is_first[0] = False  # the runner has reset the state already
    rest = agent.network.unroll(policy, one.observations[3:], middle, is_first)[0]
    np.testing.assert_allclose(rest, whole[3:], rtol=1e-4, atol=1e-5)


def test_a_rollout_resets_at_episode_ends_and_carries_on_across_its_border(make_agent, shaken):
    env = CartPoleV1()
    agent = make_agent("vpg", env.action_space, observation=env.observation_space, network=LSTM, num_envs=3, horizon=8)
    rollout = Rollout(agent, env, 5)
    envs = rollout.begin(jax.random.key(0), 3, 1)
    collect = jax.jit(rollout.collect)
    actor_params = agent.actor_params(shaken(agent))
    before_border = None
    for chunk in range(2):
        envs, trajectory, finished = collect(envs, actor_params, jnp.int32(24 * chunk))
        assert np.any(finished.ended[:-1])
        for name, leaf in trajectory.internals.items():
            after = np.asarray(trajectory.next_internals[name])
            expected = np.where(np.asarray(finished.ended)[..., None], 0.0, after)
            np.testing.assert_array_equal(leaf[1:], expected[:-1])
            np.testing.assert_array_equal(envs.internals[name], expected[-1])
            np.testing.assert_array_equal(leaf[0], 0.0 if before_border is None else before_border[name])
            assert np.all(after != 0)
        before_border = envs.internals


def test_the_first_minibatch_of_ppo_sees_the_policy_that_acted(make_agent, shaken, in_numpy):
    agent = make_agent("ppo", Discrete(3), network=LSTM, horizon=T, epochs=1, minibatches=1)
    state = shaken(agent)
    one = Played(agent, state, "lstm", in_numpy)
    prepare_and_compare = jax.jit(lambda state, trajectory: agent.gradients(state, agent.prepare(state, trajectory)))
    _, metrics = prepare_and_compare(state, one.trajectory)
    assert metrics["approximate_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"].item() == 0.0
    # With other ends of episodes the network would keep a state that was reset when it acted.
    wrong = one.trajectory._replace(terminated=np.zeros((T, N), bool), truncated=np.zeros((T, N), bool))
    _, metrics = prepare_and_compare(state, wrong)
    assert metrics["approximate_kl"].item() > 1e-4


def test_sequences_that_cannot_be_cut_into_equal_minibatches_are_refused(make_agent):
    sentence = r"^3 sequences cannot be cut into 2 equal minibatches; change agent\.horizon, agent\.minibatches or"
    with pytest.raises(SpecError, match=sentence):
        make_agent("ppo", Discrete(3), network=LSTM, num_envs=3, horizon=4, minibatches=2)


MIXED = {
    "memory in the policy alone": (LSTM, {"type": "mlp", "sizes": [4]}),
    "memory in the value alone": (None, {"type": "network", "network": [{"type": "gru", "size": 3}]}),
}


@pytest.mark.parametrize("case", MIXED)
def test_policy_and_value_may_differ_in_whether_they_remember(make_agent, shaken, case):
    network, baseline = MIXED[case]
    settings = {"baseline": baseline, "horizon": T}
    network = network or NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])
    agent = make_agent("vpg", Box((2,)), network=network, **settings)
    state, rng = shaken(agent), np.random.default_rng(0)
    # A policy does not contain the value network, so the host cannot act in NumPy if that network is recurrent.
    assert agent.acts_in_numpy == (case == "memory in the policy alone")
    observations = rng.normal(size=(T, N, 3)).astype(np.float32)
    noise = agent.draw_noise(jax.random.key(0), (T, N))
    act = jax.jit(agent.act)
    internals, rows = agent.initial_internals((N,)), []
    for t in range(T):
        before = internals
        actions, outputs, after = act(agent.actor_params(state), observations[t], noise[t], 0, internals)
        rows.append((actions, outputs, before, after))
        internals = {name: np.where(ENDED[t][:, None], 0.0, leaf) for name, leaf in after.items()}
    actions, outputs, before, after = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    following = np.concatenate([observations[1:], observations[:1]])
    rewards = rng.normal(size=(T, N)).astype(np.float32)
    trajectory = Trajectory(
        observations, actions, rewards, ENDED, ~ENDED & ENDED, following, outputs, rewards, before, after
    )
    gradients, metrics, values, returns = jax.jit(worked_out, static_argnums=0)(agent, state, trajectory)
    assert np.all(np.isfinite(gradients))
    # The error of the value network shows whether its values over sequences equal those computed timestep by timestep.
    expected = np.mean((np.asarray(values).T - np.asarray(returns)) ** 2)
    assert metrics["value_loss"].item() == pytest.approx(expected, rel=1e-4)


def worked_out(agent, state, trajectory):
    batch = agent.prepare(state, trajectory)
    return *agent.gradients(state, batch), agent.trajectory_values(state, trajectory)[0], batch.returns


def test_a_policy_with_a_memory_acts_as_the_agent_does(played):
    agent, state, one, kind = played
    policy = agent.policy(state, 0)
    remembered = policy.initial_state((N,))
    assert set(remembered) == {name for name in one.trajectory.internals if not name.startswith("value/")}
    remembered = {name: one.trajectory.internals[name][0] for name in remembered}
    for t in range(T):
        outputs, remembered = policy.outputs_after(one.observations[t], remembered)
        np.testing.assert_allclose(outputs, one.outputs[t], rtol=1e-4, atol=1e-5)
        remembered = {name: np.where(ENDED[t][:, None], 0.0, leaf) for name, leaf in remembered.items()}
    assert kind in next(iter(remembered))
