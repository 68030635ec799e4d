"""Soft actor-critic against NumPy and SciPy: squashed probabilities, three losses, the temperature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.errors import SpecError
from steppe.specs.spaces import Box

BOUNDED = Box((2,), (-1.0,), (1.0,))


def squashed(outputs, noise):
    """(actions, log-probabilities) by SciPy's normal density and a = tanh(u), da/du = 1 / cosh(u)^2."""
    mean, log_std = np.split(outputs, 2, -1)
    std = np.exp(np.clip(log_std, -20, 2))
    before = mean + std * noise
    log_probs = stats.norm(mean, std).logpdf(before) + 2 * np.log(np.cosh(before))
    return np.tanh(before), log_probs.sum(-1)


class Networks:
    """The actor and both critics of a parameter vector, in float64."""

    def __init__(self, in_numpy, agent, vector):
        self.tools, self.tensors = in_numpy, in_numpy.tensors(agent, vector)

    def outputs(self, observations):
        return self.tools.dense(self.tensors, "actor/head", self.tools.torso(self.tensors, "actor/", observations))

    def values(self, observations, actions):
        inputs = np.concatenate([observations, actions], -1)
        return np.stack(
            [
                self.tools.dense(
                    self.tensors, f"critic_{index}/head", self.tools.torso(self.tensors, f"critic_{index}/", inputs)
                )[..., 0]
                for index in range(2)
            ]
        )


def losses_in_numpy(in_numpy, agent, vector, state, batch, noise, next_noise=None):
    """Equations 5, 7 and 18, each for its own part of the vector, with the rest fixed."""
    said, next_noise = agent.settings, noise if next_noise is None else next_noise
    moving, frozen = (Networks(in_numpy, agent, each) for each in (vector, state.params))
    target = Networks(in_numpy, agent, state.target)
    log_temperature = frozen.tensors["temperature/log"][0]
    temperature = np.exp(log_temperature) if said.temperature == "auto" else said.temperature
    next_actions, next_log_probs = squashed(frozen.outputs(batch.next_observations), next_noise)
    following = target.values(batch.next_observations, next_actions).min(0) - temperature * next_log_probs
    targets = batch.rewards + batch.discounts * following
    errors = moving.values(batch.observations, batch.actions) - targets
    critic_loss = 0.5 * np.mean(batch.weights * errors**2, -1).sum()
    actions, log_probs = squashed(moving.outputs(batch.observations), noise)
    actor_loss = np.mean(temperature * log_probs - frozen.values(batch.observations, actions).min(0))
    entropy = -np.mean(squashed(frozen.outputs(batch.observations), noise)[1])
    wanted = -2.0 if said.target_entropy == "auto" else said.target_entropy
    temperature_loss = moving.tensors["temperature/log"][0] * (entropy - wanted)
    return {
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "temperature_loss": temperature_loss if said.temperature == "auto" else 0.0,
        "entropy": entropy,
        "temperature": temperature,
        "priorities": np.abs(errors[0]),
    }


@pytest.mark.parametrize(
    "settings",
    [{}, {"initial_temperature": 0.3, "target_entropy": -0.5}, {"temperature": 0.2}],
    ids=["automatic", "other entropy", "fixed temperature"],
)
def test_losses_and_gradient_are_those_of_the_paper(
    make_agent, shaken, random_transitions, in_numpy, monkeypatch, settings
):
    agent = make_agent("sac", BOUNDED, **settings)
    state, batch = shaken(agent), random_transitions(BOUNDED)
    noise = np.random.default_rng(8).normal(size=(12, 2))
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: jnp.asarray(noise, jnp.float32).reshape(shape))
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    expected = losses_in_numpy(in_numpy, agent, state.params, state, batch, noise)
    for name in ("critic_loss", "actor_loss", "entropy", "temperature"):
        assert metrics[name].item() == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    np.testing.assert_allclose(metrics["priorities"], expected["priorities"], rtol=1e-3, atol=1e-4)

    def total(vector):
        losses = losses_in_numpy(in_numpy, agent, vector, state, batch, noise)
        return losses["critic_loss"] + losses["actor_loss"] + losses["temperature_loss"]

    np.testing.assert_allclose(gradients, in_numpy.slope(total, state.params), rtol=2e-3, atol=1e-4)


@pytest.fixture(scope="module")
def learners(make_agent):
    """[(agent, its metrics as one program), ...] with a learned and with a fixed temperature, for many batches."""
    made = [make_agent("sac", BOUNDED), make_agent("sac", BOUNDED, temperature=0.2)]
    return [(agent, jax.jit(lambda state, batch, agent=agent: agent.gradients(state, batch)[1])) for agent in made]


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    which=st.sampled_from([0, 1]),
    seed=st.integers(0, 10_000),
    size=st.sampled_from([0.1, 0.4, 0.8]),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    updates=st.integers(0, 9),
)
def test_the_losses_of_any_batch_are_those_of_the_paper(
    learners, random_transitions, in_numpy, which, seed, size, scale, updates
):
    agent, metrics_of = learners[which]
    batch, state = random_transitions(BOUNDED, seed), agent.init(jax.random.key(seed))
    batch = batch._replace(rewards=scale * batch.rewards)
    params, target = np.random.default_rng(seed).normal(0.0, size, (2, *state.params.shape)).astype(np.float32)
    state = state._replace(params=params, target=target, updates=np.int32(updates))
    keys = jax.random.split(jax.random.fold_in(state.key, updates))
    noise, next_noise = (np.asarray(jax.random.normal(key, (12, 2)), np.float64) for key in keys)
    metrics = metrics_of(state, batch)
    expected = losses_in_numpy(in_numpy, agent, params, state, batch, noise, next_noise)
    for name in ("critic_loss", "actor_loss", "entropy", "temperature"):
        assert metrics[name].item() == pytest.approx(expected[name], rel=2e-3, abs=2e-3), name
    total = sum(expected[name] for name in ("critic_loss", "actor_loss", "temperature_loss"))
    assert metrics["loss"].item() == pytest.approx(total, rel=2e-3, abs=4e-3)
    np.testing.assert_allclose(metrics["priorities"], expected["priorities"], rtol=2e-3, atol=2e-3)


def test_the_actor_and_the_next_action_are_drawn_with_noise_of_their_own(make_agent, shaken, random_transitions):
    agent = make_agent("sac", BOUNDED)
    state, batch = shaken(agent), random_transitions(BOUNDED)
    drawn = []
    original = agent._draw
    agent._draw = lambda *given: drawn.append(original(*given)) or drawn[-1]
    agent.loss(jnp.asarray(state.params), state, batch._replace(next_observations=batch.observations))
    assert len(drawn) == 2
    assert np.all(np.abs(drawn[0][0] - drawn[1][0]) > 1e-6)
    again = agent.loss(jnp.asarray(state.params), state._replace(updates=np.int32(1)), batch)
    assert len(drawn) == 4
    assert np.all(np.abs(drawn[1][0] - drawn[3][0]) > 1e-6)
    assert np.isfinite(again[0])


def test_log_probabilities_are_those_of_the_change_of_variables(make_agent, shaken):
    agent = make_agent("sac", BOUNDED)
    params = agent.layout.split(shaken(agent).params)
    observations = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    actions, log_probs = jax.jit(agent._draw)(params, observations, jax.random.key(0))
    outputs = np.asarray(agent.act_on(params, observations), np.float64)
    mean, log_std = np.split(outputs, 2, -1)
    before = np.arctanh(np.asarray(actions, np.float64))
    expected = (stats.norm(mean, np.exp(log_std)).logpdf(before) - np.log1p(-(np.tanh(before) ** 2))).sum(-1)
    inside = np.all(np.abs(actions) < 0.999, -1)
    assert inside.mean() > 0.8
    np.testing.assert_allclose(np.asarray(log_probs)[inside], expected[inside], rtol=0.01, atol=0.01)


def test_probabilities_far_out_and_of_tiny_spread_stay_finite(make_agent, shaken):
    agent = make_agent("sac", BOUNDED)
    params = agent.layout.split(jnp.asarray(shaken(agent).params))
    observations = np.zeros((2, 3), np.float32)
    for mean, log_std in [(30.0, 0.0), (-30.0, 9.0), (0.0, -50.0)]:
        params["actor"]["head"] = {
            "kernel": jnp.zeros((4, 4)),
            "bias": jnp.array([mean, mean, log_std, log_std]),
        }

        def total(head):
            return agent._draw(params | {"actor": params["actor"] | {"head": head}}, observations, jax.random.key(0))[
                1
            ].sum()

        value, slope = jax.value_and_grad(total)(params["actor"]["head"])
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slope))


def test_actions_are_drawn_as_their_probabilities_say(make_agent):
    agent = make_agent("sac", BOUNDED, learning_starts=0)
    outputs = np.array([0.5, -1.0, -0.7, 0.2], np.float32)
    noise = np.asarray(agent.draw_noise(jax.random.key(0), (8000,)))
    actions, _ = agent.choose(np.tile(outputs, (8000, 1)), noise, 0, {}, 0.0, np)
    for i in range(2):
        before = np.arctanh(np.clip(actions[:, i].astype(np.float64), -1 + 1e-7, 1 - 1e-7))
        assert stats.kstest(before, stats.norm(outputs[i], np.exp(outputs[2 + i])).cdf).pvalue > 0.01


def test_the_temperature_rises_while_there_is_too_little_entropy_and_falls_while_there_is_too_much(
    make_agent, shaken, random_transitions
):
    slopes = {}
    for wanted in (-50.0, 50.0):
        agent = make_agent("sac", BOUNDED, target_entropy=wanted)
        gradients, _ = jax.jit(agent.gradients)(shaken(agent), random_transitions(BOUNDED))
        slopes[wanted] = agent.layout.named(np.asarray(gradients))["temperature/log"].item()
    # A step is against the gradient.
    assert slopes[50.0] < 0 < slopes[-50.0]


def test_a_learned_temperature_starts_where_it_is_told(make_agent):
    agent = make_agent("sac", BOUNDED, initial_temperature=0.25)
    params = agent.layout.split(agent.init(jax.random.key(0)).params)
    assert float(agent._temperature(params)) == pytest.approx(0.25)
    fixed = make_agent("sac", BOUNDED, temperature=0.1)
    assert float(fixed._temperature(params)) == pytest.approx(0.1)


@pytest.mark.parametrize("word", ["initial_temperature", "target_entropy"])
def test_a_fixed_temperature_is_not_learned(checked, word):
    with pytest.raises(SpecError, match=word):
        checked("sac", temperature=0.1, **{word: 0.5})
