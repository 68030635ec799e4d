"""Trust-region policy optimisation: the step against dense linear algebra, and the requested divergence."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.errors import SpecError
from steppe.specs.learning.optimizer import MultiStep, NaturalGradient, OptimizedStep
from steppe.specs.spaces import Discrete


def logits(in_numpy, agent, vector, observations):
    tensors = in_numpy.tensors(agent, vector)
    return in_numpy.log_softmax(
        in_numpy.dense(tensors, "policy/head", in_numpy.torso(tensors, "policy/", observations))
    )


def divergence(in_numpy, agent, old, new, observations):
    """The mean of KL(old || new) over the observations."""
    p, q = (logits(in_numpy, agent, vector, observations) for vector in (old, new))
    return np.mean(np.sum(np.exp(p) * (p - q), -1))


def surrogate(in_numpy, agent, vector, batch):
    """Equation 14, negated to be minimised."""
    advantages = batch.advantages.astype(np.float64)
    advantages = (advantages - advantages.mean()) / advantages.std()
    log_p = logits(in_numpy, agent, vector, batch.observations)
    log_probs = log_p[np.arange(len(log_p)), batch.actions]
    return -np.mean(np.exp(log_probs - batch.log_probs) * advantages)


def fisher(in_numpy, agent, vector, observations, width=1e-5):
    """The mean of J^T (diag(p) - p p^T) J over the observations, with the Jacobian J by finite differences."""
    vector = np.asarray(vector, np.float64)
    columns = []
    for i in range(vector.size):
        step = np.zeros_like(vector)
        step[i] = width
        ahead, behind = (logits(in_numpy, agent, v, observations) for v in (vector + step, vector - step))
        columns.append((ahead - behind) / (2 * width))
    jacobian = np.stack(columns, -1)  # [B, 3, P]
    p = np.exp(logits(in_numpy, agent, vector, observations))
    # E[grad log p (grad log p)^T], the definition of the Fisher information.
    return np.einsum("bk,bki,bkj->ij", p, jacobian, jacobian) / len(p)


@pytest.fixture(scope="module")
def case(make_agent, shaken, random_batch, in_numpy):
    """An agent, its state, and a batch with the probabilities of the policy that acted."""
    agent = make_agent("trpo", Discrete(3), learning_rate=0.002, cg_max_iterations=40, cg_damping=0.05)
    state, batch = shaken(agent), random_batch(Discrete(3), size=256)
    log_p = logits(in_numpy, agent, state.params, batch.observations)
    batch = batch._replace(log_probs=log_p[np.arange(256), batch.actions].astype(np.float32))
    return agent, state, batch


def test_the_direction_is_the_damped_inverse_fisher_matrix_times_the_gradient(case, in_numpy):
    agent, state, batch = case
    direction, metrics = jax.jit(agent.optimizers[0].gradients)(state, batch)
    gradient = in_numpy.slope(lambda vector: surrogate(in_numpy, agent, vector, batch), state.params)
    assert metrics["policy_loss"].item() == pytest.approx(surrogate(in_numpy, agent, state.params, batch), abs=1e-5)
    damped = fisher(in_numpy, agent, state.params, batch.observations) + 0.05 * np.eye(gradient.size)
    solution = np.linalg.solve(damped, gradient)
    expected = np.sqrt(2 * 0.002 / (solution @ damped @ solution)) * solution
    np.testing.assert_allclose(direction, expected, rtol=0.02, atol=1e-4)


def test_a_step_has_the_divergence_that_was_asked_for(make_agent, case, in_numpy):
    # Little damping, which uses up a part of the divergence, and a step small enough for the second order.
    agent = make_agent("trpo", Discrete(3), learning_rate=1e-4, cg_max_iterations=40, cg_damping=1e-3)
    _, state, batch = case
    after, _ = jax.jit(agent.step)(agent.init(jax.random.key(0))._replace(params=state.params), batch)
    moved = divergence(in_numpy, agent, state.params, after.params, batch.observations)
    assert moved == pytest.approx(1e-4, rel=0.15)
    before, later = (surrogate(in_numpy, agent, vector, batch) for vector in (state.params, after.params))
    assert later < before


def test_the_reported_divergence_is_that_of_the_update(make_agent, shaken, random_trajectory, in_numpy):
    agent = make_agent(
        "trpo", Discrete(3), horizon=8, baseline_optimizer={"type": "multi_step", "num_steps": 2, "optimizer": "adam"}
    )
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    after, metrics = jax.jit(agent.update)(state, trajectory)
    observations = trajectory.observations.reshape(-1, 3)
    expected = divergence(in_numpy, agent, state.params, after.params, observations)
    assert metrics["kl"].item() == pytest.approx(expected, rel=1e-2, abs=1e-6)
    assert 0 < expected < 2 * agent.settings.learning_rate
    assert after.updates == agent.updates_per_rollout == 1 + 2
    value = slice(agent.layout.start_of("value"), None)
    assert np.all(np.asarray(after.params)[value] != np.asarray(state.params)[value])


def test_a_step_whose_divergence_is_too_large_is_shortened(make_agent, case, in_numpy):
    agent = make_agent("trpo", Discrete(3), learning_rate=0.5, cg_damping=1e-3, ls_accept_ratio=0.0)
    _, state, batch = case
    after, _ = jax.jit(agent.step)(agent.init(jax.random.key(0))._replace(params=state.params), batch)
    assert 0.0 < divergence(in_numpy, agent, state.params, after.params, batch.observations) <= 1.5 * 0.5


def test_a_step_that_would_not_help_is_not_taken(make_agent, case):
    # With zero advantages no step improves the policy; the value network still learns.
    agent = make_agent("trpo", Discrete(3), normalize_advantages=False)
    _, state, batch = case
    state = agent.init(jax.random.key(0))._replace(params=state.params)
    after, _ = jax.jit(agent.step)(state, batch._replace(advantages=np.zeros(256, np.float32)))
    start = agent.layout.start_of("value")
    np.testing.assert_array_equal(after.params[:start], np.asarray(state.params)[:start])
    assert np.any(np.asarray(after.params)[start:] != np.asarray(state.params)[start:])


def test_the_optimiser_is_built_from_the_settings(checked):
    settings = checked("trpo", cg_max_iterations=7, cg_damping=0.2, ls_max_iterations=4, ls_accept_ratio=0.3)
    search = settings.optimizer
    assert isinstance(search, OptimizedStep)
    assert (search.ls_max_iterations, search.ls_accept_ratio) == (4, 0.3)
    assert search.optimizer == NaturalGradient(cg_max_iterations=7, cg_damping=0.2)
    assert isinstance(settings.baseline_optimizer, MultiStep)
    assert "optimizer" not in settings.model_dump()
    assert type(settings).model_validate(settings.model_dump()).optimizer == search


@pytest.mark.parametrize("word", ["optimizer", "step_optimizer"])
def test_an_optimiser_of_ones_own_is_refused(checked, word):
    sentence = 'agent "trpo" has an optimizer of its own; use learning_rate and the cg_ and ls_ settings$'
    with pytest.raises(SpecError, match=sentence):
        checked("trpo", **{word: "adam"})


def test_settings_that_a_natural_step_cannot_follow_are_refused(checked):
    for agent, given in (("trpo", {}), ("vpg", {"optimizer": "natural_gradient", "baseline_optimizer": "adam"})):
        with pytest.raises(SpecError, match="learning_rate_decay"):
            checked(agent, **given, learning_rate_decay="linear")
