"""Optimisers against their equations in NumPy, and the effects of those that wrap others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import TypeAdapter

from steppe.agents._base import TrainState
from steppe.agents.core.learning_rate import LearningRate
from steppe.agents.core.normalizers import empty
from steppe.agents.core.optimizers import OptimizerSettings, innermost, make_transform, steps_of
from steppe.agents.core.wrapped_steps import gradient_of, wrapped_step
from steppe.errors import SpecError, UserError
from steppe.specs.learning.optimizer import OptimizerSpec

PARAMS = np.array([0.5, -1.0, 2.0], np.float32)
GRADIENTS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
read = TypeAdapter(OptimizerSpec).validate_python


def run(spec, rate=0.01, longest=None, gradients=GRADIENTS):
    """The parameters after each gradient [steps, P]."""
    transform = make_transform(read(spec), rate, longest)

    def take(carry, gradient):
        params, state = carry
        change, state = transform.update(gradient, state, params)
        params = optax.apply_updates(params, change)
        return (params, state), params

    def whole(gradients):
        start = jnp.asarray(PARAMS)
        return jax.lax.scan(take, (start, transform.init(start)), gradients)[1]

    return np.asarray(jax.jit(whole)(gradients))


def shortened(gradient, longest):
    length = np.linalg.norm(gradient)
    return gradient * (longest / length) if length > longest else gradient


class Equations:
    """One step of each optimiser: (gradient, number of the step from 1) -> the step at learning rate 1."""

    def __init__(self, **options):
        self.options = SimpleNamespace(**options)
        self.first, self.second, self.third = np.zeros((3, 3))

    def adam(self, g, t):
        o = self.options
        self.first = o.beta1 * self.first + (1 - o.beta1) * g
        self.second = o.beta2 * self.second + (1 - o.beta2) * g**2
        return (self.first / (1 - o.beta1**t)) / (np.sqrt(self.second / (1 - o.beta2**t)) + o.epsilon)

    def nadam(self, g, t):
        o = self.options
        self.first = o.beta1 * self.first + (1 - o.beta1) * g
        self.second = o.beta2 * self.second + (1 - o.beta2) * g**2
        ahead = o.beta1 * self.first / (1 - o.beta1 ** (t + 1)) + (1 - o.beta1) * g / (1 - o.beta1**t)
        return ahead / (np.sqrt(self.second / (1 - o.beta2**t)) + o.epsilon)

    def adagrad(self, g, t):
        self.first = (self.options.initial_accumulator_value if t == 1 else self.first) + g**2
        return g / np.sqrt(self.first + 1e-7)

    def adadelta(self, g, t):
        o = self.options
        self.first = o.rho * self.first + (1 - o.rho) * g**2
        change = np.sqrt(self.second + o.epsilon) / np.sqrt(self.first + o.epsilon) * g
        self.second = o.rho * self.second + (1 - o.rho) * change**2
        return change

    def rmsprop(self, g, t):
        o = self.options
        self.first = o.decay * self.first + (1 - o.decay) * g**2
        self.second = o.momentum * self.second + g / np.sqrt(self.first + o.epsilon)
        return self.second

    def momentum(self, g, t):
        o = self.options
        self.first = o.momentum * self.first + g
        return g + o.momentum * self.first if o.use_nesterov else self.first

    def gradient_descent(self, g, t):
        return g


NAMED = [
    {"type": "adam"},
    {"type": "adam", "beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
    {"type": "nadam"},
    {"type": "nadam", "beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
    {"type": "adagrad"},
    {"type": "adagrad", "initial_accumulator_value": 2.0},
    {"type": "adadelta"},
    {"type": "adadelta", "rho": 0.5, "epsilon": 0.01},
    {"type": "rmsprop"},
    {"type": "rmsprop", "decay": 0.5, "momentum": 0.8, "epsilon": 0.1},
    {"type": "momentum"},
    {"type": "momentum", "momentum": 0.5, "use_nesterov": True},
    {"type": "gradient_descent"},
]


def by_equation(spec, gradients=GRADIENTS, rate_at=lambda t: 0.01, longest=math.inf):
    """The parameters after each gradient, with the settings of the spec."""
    options = read(spec).model_dump()
    equation = getattr(Equations(**options), options["type"])
    params, path = PARAMS.astype(np.float64), []
    for t, gradient in enumerate(gradients.astype(np.float64), start=1):
        params = params - rate_at(t - 1) * equation(shortened(gradient, longest), t)
        path.append(params)
    return np.array(path)


@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: "-".join(map(str, spec.values())))
def test_each_optimiser_follows_its_equations(spec):
    path, expected = run(spec), by_equation(spec)
    np.testing.assert_allclose(path, expected, rtol=2e-4, atol=2e-6)
    # The options matter: with others the path differs.
    if len(spec) > 1:
        assert np.max(np.abs(expected - by_equation({"type": spec["type"]}))) > 1e-3


def test_optimisers_see_gradients_shortened_by_their_norm():
    path = run("adam", longest=0.5, gradients=10 * GRADIENTS)
    expected = by_equation({"type": "adam"}, 10 * GRADIENTS, longest=0.5)
    np.testing.assert_allclose(path, expected, rtol=1e-5, atol=1e-6)


def test_only_gradients_longer_than_the_limit_are_shortened():
    long, short = np.array([3.0, 4.0, 0.0], np.float32), np.array([0.3, 0.0, 0.0], np.float32)
    path = run("gradient_descent", 1.0, 0.5, np.stack([long, short]))
    np.testing.assert_allclose(path[0], PARAMS - long / 10, rtol=1e-5)
    np.testing.assert_allclose(path[1], path[0] - short, rtol=1e-5)


FALLING = {
    "linear": lambda share: 0.1 + share * (0.01 - 0.1),
    "exponential": lambda share: 0.1 * (0.01 / 0.1) ** share,
    "cosine": lambda share: 0.01 + (0.1 - 0.01) * 0.5 * (1 + math.cos(math.pi * share)),
}


@pytest.mark.parametrize("decay", FALLING)
def test_a_falling_learning_rate_has_its_shape_and_stays_where_it_ends(decay):
    settings = OptimizerSettings(learning_rate=0.1, learning_rate_decay=decay, final_learning_rate=0.01)
    rate = LearningRate.of(settings, 8, settings.learning_rate).schedule()
    for update in (0, 1, 4, 7, 8, 12, 1000):
        assert float(rate(update)) == pytest.approx(FALLING[decay](min(update / 8, 1.0)), rel=1e-4)
    path = run("adam", rate)
    expected = by_equation({"type": "adam"}, rate_at=lambda t: FALLING[decay](min(t / 8, 1.0)))
    np.testing.assert_allclose(path, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_learning_rate_that_falls_to_zero_ends_the_steps(decay):
    settings = OptimizerSettings(learning_rate=0.1, learning_rate_decay=decay)
    path = run(
        "gradient_descent",
        LearningRate.of(settings, 8, settings.learning_rate).schedule(),
        gradients=np.ones((12, 3), np.float32),
    )
    assert np.all(path[7] != path[6])
    np.testing.assert_allclose(path[8:], np.broadcast_to(path[7], (4, 3)), atol=1e-7)


def test_a_learning_rate_that_does_not_fall_is_the_number_itself():
    rate = LearningRate.of(OptimizerSettings(), None, 0.1)
    assert rate.schedule() == rate.on_host() == 0.1


@pytest.mark.parametrize("decay", FALLING)
def test_a_falling_learning_rate_without_an_end_is_refused(decay):
    settings = OptimizerSettings(learning_rate_decay=decay, final_learning_rate=0.001)
    sentence = f'^learning_rate_decay "{decay}" needs total_timesteps, to know when it ends$'
    with pytest.raises(UserError, match=sentence):
        LearningRate.of(settings, None, settings.learning_rate)


def test_an_exponential_fall_to_zero_is_refused(checked):
    sentence = 'learning_rate_decay "exponential" never reaches zero: give final_learning_rate$'
    with pytest.raises(SpecError, match=sentence):
        checked("ppo", learning_rate_decay="exponential")


class Points(NamedTuple):
    """The batches of `Bowl`: [B, 3]."""

    where: jax.Array


class Bowl:
    """A fake agent that minimises the mean squared distance from points by gradient descent."""

    def __init__(self, rate=0.1, spec="gradient_descent"):
        self.transform = make_transform(read(spec), rate, None)
        self.rate = rate

    def pmean(self, values):
        return values

    def after_step(self, before, moved):
        return moved

    def in_trust_region(self, params, state, batch):
        return True

    def state(self):
        params = jnp.asarray(PARAMS)
        return TrainState(
            params, params[:0], self.transform.init(params), empty(()), empty(()), jax.random.key(3), jnp.int32(0)
        )

    def loss(self, params, state, batch):
        return 0.5 * ((params - batch.where) ** 2).sum(-1).mean()

    def gradients(self, state, batch):
        loss, gradients = jax.value_and_grad(self.loss)(state.params, state, batch)
        return gradients, {"loss": loss}

    def apply(self, state, gradients):
        change, optimizer = self.transform.update(gradients, state.optimizer, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, change), optimizer=optimizer, updates=state.updates + 1
        )


POINTS = Points(jnp.asarray(np.random.default_rng(1).normal(1.0, 1.0, (20, 3)), jnp.float32))


def stepped(spec, bowl=None, batch=POINTS):
    bowl = bowl or Bowl()
    return jax.jit(lambda state: wrapped_step(read(spec), bowl, state, batch))(bowl.state())


def test_a_plain_optimiser_takes_one_step_down_the_gradient():
    after, metrics = stepped("gradient_descent")
    np.testing.assert_allclose(after.params, PARAMS - 0.1 * (PARAMS - POINTS.where.mean(0)), rtol=1e-5)
    assert after.updates == 1
    expected = 0.5 * np.mean(np.sum((PARAMS - np.asarray(POINTS.where)) ** 2, -1))
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_multi_step_takes_its_steps_one_after_the_other():
    spec = {"type": "multi_step", "num_steps": 4, "optimizer": "gradient_descent"}
    after, metrics = stepped(spec)
    params, losses = PARAMS.astype(np.float64), []
    for _ in range(4):
        losses.append(0.5 * np.mean(np.sum((params - np.asarray(POINTS.where)) ** 2, -1)))
        params = params - 0.1 * (params - POINTS.where.mean(0))
    np.testing.assert_allclose(after.params, params, rtol=1e-5)
    assert metrics["loss"].item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert after.updates == 4
    assert steps_of(read(spec)) == 4


def test_steps_inside_steps_multiply():
    inner = {"type": "multi_step", "num_steps": 3, "optimizer": {"type": "clipped_step", "clipping_value": 9.0}}
    inner["optimizer"]["optimizer"] = "adam"
    spec = read({"type": "multi_step", "num_steps": 2, "optimizer": inner})
    assert steps_of(spec) == 6
    assert innermost(spec).type == "adam"
    assert stepped(spec)[0].updates == 6


def test_a_clipped_step_changes_no_parameter_by_more_than_its_value():
    spec = {"type": "clipped_step", "clipping_value": 0.05, "optimizer": "gradient_descent"}
    full = -0.1 * (PARAMS - POINTS.where.mean(0))
    assert np.any(np.abs(full) > 0.05)
    assert np.any(np.abs(full) < 0.05)
    after, _ = stepped(spec)
    np.testing.assert_allclose(after.params - PARAMS, np.clip(full, -0.05, 0.05), rtol=1e-3, atol=1e-6)


def test_a_subsampling_step_sees_a_random_part_of_the_batch():
    spec = {"type": "subsampling_step", "fraction": 0.25, "optimizer": "gradient_descent"}
    bowl = Bowl()
    take = jax.jit(lambda state: wrapped_step(read(spec), bowl, state, POINTS))
    state, seen = bowl.state(), []
    for _ in range(8):
        after, _ = take(state)
        # One step of gradient descent on this loss shows the mean of its points.
        seen.append(np.asarray(state.params + (after.params - state.params) / 0.1, np.float64))
        state = after
    means = np.array(seen)
    assert len(np.unique(means.round(4), axis=0)) == 8
    # Each is the mean of exactly 5 of the 20 points: the spread would differ for another number.
    spread = POINTS.where.std(0, ddof=1) * np.sqrt((1 - 5 / 20) / 5)
    assert np.all(np.abs(means.mean(0) - POINTS.where.mean(0)) < 4 * spread / np.sqrt(8))
    assert np.all(means.std(0, ddof=1) < 2.5 * spread)
    assert np.all(means.std(0, ddof=1) > spread / 3)


def test_a_tiny_part_of_a_batch_is_still_one_sample():
    spec = {"type": "subsampling_step", "fraction": 0.001, "optimizer": "gradient_descent"}
    after, _ = stepped(spec, Bowl(rate=1.0))
    assert np.any(np.all(np.isclose(after.params, POINTS.where, atol=1e-5), -1))


def test_an_optimized_step_is_shortened_until_the_loss_falls():
    # At rate 3 a step overshoots to twice the distance on the other side; half of it overshoots to half of that.
    spec = {"type": "optimized_step", "optimizer": "gradient_descent"}
    after, _ = stepped(spec, Bowl(rate=3.0))
    goal = POINTS.where.mean(0)
    np.testing.assert_allclose(after.params - goal, -0.5 * (PARAMS - goal), rtol=1e-4)
    # With a required ratio of half of the slope's promise, the step must be halved until it ends before the minimum.
    strict = spec | {"ls_accept_ratio": 0.6}
    after, _ = stepped(strict, Bowl(rate=3.0))
    np.testing.assert_allclose(after.params - goal, 0.25 * (PARAMS - goal), rtol=1e-4)


def test_an_optimized_step_that_never_helps_is_not_taken():
    spec = {"type": "optimized_step", "ls_max_iterations": 3, "optimizer": "gradient_descent"}
    after, _ = stepped(spec, Bowl(rate=1e4))
    np.testing.assert_array_equal(after.params, PARAMS)


def test_an_optimized_step_that_helps_at_once_is_taken_whole():
    spec = {"type": "optimized_step", "ls_parameter": 0.1, "optimizer": "gradient_descent"}
    after, _ = stepped(spec, Bowl(rate=0.1))
    np.testing.assert_allclose(after.params, stepped("gradient_descent")[0].params, rtol=1e-5)


def test_an_evolutionary_gradient_is_the_mean_slope_along_random_directions():
    spec = read({"type": "evolutionary", "num_samples": 4000, "deviation": 0.05})
    matrix = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 3.0]], np.float32)

    def loss(params):
        return 0.5 * params @ matrix @ params, {"here": params[0]}

    estimate, auxiliary = jax.jit(lambda key: gradient_of(spec, loss, jnp.asarray(PARAMS), key))(jax.random.key(0))
    exact = matrix @ PARAMS
    # Along a direction d the slope of a square is exact, so the estimate is the mean of d (d . exact).
    error = 4 * np.linalg.norm(exact) * math.sqrt(2 / 4000)
    np.testing.assert_allclose(estimate, exact, atol=error)
    assert auxiliary["here"] == PARAMS[0]


def test_an_evolutionary_gradient_needs_no_derivative():
    spec = read({"type": "evolutionary", "num_samples": 400, "deviation": 0.5})

    def staircase(params):
        return jnp.floor(4 * jnp.abs(params)).sum(), {}

    exact, _ = gradient_of(read("adam"), staircase, jnp.asarray(PARAMS), jax.random.key(0))
    np.testing.assert_array_equal(exact, 0.0)
    estimate, _ = gradient_of(spec, staircase, jnp.asarray(PARAMS), jax.random.key(0))
    assert np.all(np.sign(estimate) == np.sign(PARAMS))


def test_other_optimisers_have_the_exact_gradient():
    for name in ("adam", {"type": "multi_step", "optimizer": "adagrad"}):
        gradient, _ = gradient_of(read(name), lambda p: ((p**3).sum(), {}), jnp.asarray(PARAMS), jax.random.key(0))
        np.testing.assert_allclose(gradient, 3 * PARAMS**2, rtol=1e-5)


@pytest.mark.parametrize("agent", ["ppo", "dqn", "sac", "pqn"])
def test_a_learning_rate_may_be_written_inside_or_beside_but_not_both(checked, agent):
    assert checked(agent, optimizer={"type": "adam", "learning_rate": 0.02}).learning_rate == 0.02
    assert checked(agent, optimizer="adam", learning_rate=0.02).learning_rate == 0.02
    inner = {"type": "clipped_step", "clipping_value": 0.1, "optimizer": {"type": "adam", "learning_rate": 0.02}}
    settings = checked(agent, optimizer=inner)
    assert settings.learning_rate == 0.02
    assert settings.optimizer.clipping_value == 0.1
    sentence = "the learning rate of optimizer is given twice; give it once$"
    with pytest.raises(SpecError, match=sentence):
        checked(agent, optimizer={"type": "adam", "learning_rate": 0.02}, learning_rate=0.01)
    with pytest.raises(SpecError, match=sentence):
        checked(agent, optimizer={"learning_rate": 0.3, **inner})


@pytest.mark.parametrize("word", ["linear", "linear_decay"])
def test_a_falling_learning_rate_may_be_written_inside(checked, word):
    falling = {"type": word, "initial_value": 0.1, "final_value": 0.01}
    settings = checked("ppo", optimizer={"type": "adam", "learning_rate": falling})
    assert settings.learning_rate == 0.1
    assert settings.learning_rate_decay == "linear"
    assert settings.final_learning_rate == 0.01


@pytest.mark.parametrize(
    "wrong",
    [{"type": "linear"}, {"initial_value": 0.1, "steps": 5}, {}, {"type": ["linear"], "initial_value": 0.1}],
)
def test_a_falling_learning_rate_that_cannot_be_read_is_explained(checked, wrong):
    with pytest.raises(SpecError, match=r'a falling learning rate is written \{"type": "linear", "initial_value"'):
        checked("ppo", optimizer={"type": "adam", "learning_rate": wrong})


def test_a_falling_learning_rate_is_not_given_twice(checked):
    falling = {"type": "linear", "initial_value": 0.1, "final_value": 0.01}
    for twice in ({"learning_rate_decay": "cosine"}, {"final_learning_rate": 0.05}):
        with pytest.raises(SpecError, match="twice"):
            checked("ppo", optimizer={"type": "adam", "learning_rate": falling}, **twice)


def test_a_final_learning_rate_needs_a_fall(checked):
    with pytest.raises(SpecError, match="final_learning_rate"):
        checked("ppo", final_learning_rate=1e-4)
