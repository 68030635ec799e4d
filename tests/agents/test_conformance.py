"""One suite for all agents, on acting and export, in every space that they allow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benches import (
    CASES,
    ENVS,
    LEARNERS,
    LEARNING,
    SAME_ALGORITHM,
    SAMPLES,
    SETTINGS,
    TRIED_ACTIONS,
    bench_of,
    described,
    named,
    same,
)

from steppe import agents
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete


@pytest.fixture(params=CASES, ids=named)
def bench(request):
    return bench_of(*request.param)


def test_this_suite_holds_every_agent():
    assert set(SETTINGS) == set(TRIED_ACTIONS) == set(agents.names())
    assert {agent for agent, *_ in LEARNING} == LEARNERS - set(SAME_ALGORITHM)
    for name, other in SAME_ALGORITHM.items():
        derived, algorithm = (agents.agent_class(AgentSpec.model_validate(each)) for each in (name, other))
        assert issubclass(derived, algorithm)
        assert not {"update", "gradients", "apply", "act", "losses"} & set(vars(derived))


def test_the_first_state_is_one_vector_of_parameters_with_nothing_learned(bench):
    state = bench.agent.init(jax.random.key(0))
    assert state.params.ndim == 1
    assert state.params.dtype == np.float32
    assert state.target.shape in (state.params.shape, (0,))
    assert state.updates == 0
    assert state.updates.dtype == np.int32
    assert np.all(np.isfinite(state.params))
    if bench.agent.normalizes_observations:
        assert state.observations.mean.shape == bench.observation.shape
    assert described(state) == described(bench.agent.init(jax.random.key(1)))


def test_the_same_key_gives_the_same_state_and_another_key_another(bench):
    first, again, other = (bench.agent.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def stored_shape(space):
    return (space.size,) if isinstance(space, Box) else space.shape


def test_drawn_actions_have_the_shape_that_the_learner_stores(bench):
    noise = bench.agent.draw_noise(jax.random.key(0), (2, ENVS))
    assert noise.shape == (2, ENVS, sum(columns for _, columns in bench.agent.noise))
    actions, outputs, _ = bench.draw()
    assert actions.shape == (SAMPLES, *stored_shape(bench.action))
    assert actions.dtype == (np.float32 if isinstance(bench.action, Box) else np.int32)
    assert outputs.shape[:-1] == (SAMPLES,)
    assert outputs.dtype == np.float32
    if not isinstance(bench.action, Box):
        sizes = bench.action.n if isinstance(bench.action, Discrete) else np.array(bench.action.nvec)
        assert np.all((actions >= 0) & (actions < sizes))


def test_what_an_actor_remembers_keeps_its_form(bench):
    initial = bench.agent.initial_internals((SAMPLES,))
    assert all(leaf.shape[0] == SAMPLES for leaf in jax.tree.leaves(initial))
    for lead in ((), (3,), (2, 3)):
        for name, leaf in bench.agent.initial_internals(lead).items():
            assert leaf.shape == (*lead, *initial[name].shape[1:])
    assert described(bench.draw()[2]) == described(initial)


def test_actions_reach_the_environment_in_its_shape_and_bounds(bench):
    actions = bench.draw()[0]
    taken = np.asarray(bench.agent.to_environment(actions))
    assert taken.shape == (SAMPLES, *bench.action.shape)
    match bench.action:
        case Box():
            assert taken.dtype == np.float32
            low, high = bench.action.bounds()
            assert np.all((taken >= low) & (taken <= high))
        case Discrete(n, start):
            assert taken.dtype == np.int32
            assert np.all((taken >= start) & (taken < start + n))
            np.testing.assert_array_equal(taken - start, actions)
        case MultiDiscrete(nvec):
            assert taken.dtype == np.int32
            assert np.all((taken >= 0) & (taken < np.array(nvec)))


@pytest.mark.parametrize("case", {agent: (agent, *rest) for agent, *rest in CASES}.values(), ids=named)
def test_cut_parameters_act_as_the_vector_does(case):
    bench = bench_of(*case)
    noise = bench.agent.draw_noise(jax.random.key(3), (SAMPLES,))
    cut = bench.agent.unflattened(bench.agent.actor_params(bench.state))
    assert same(bench.act(cut, bench.observations, noise, 5, bench.internals), bench.draw())


def test_actions_drawn_with_the_same_noise_are_the_same(bench):
    first, again, other = (bench.draw(seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    if bench.agent.type not in ("constant", "ddqn", "dqn_nstep", "qr_dqn"):
        assert np.any(np.asarray(first) != np.asarray(other))


def test_each_environment_is_acted_in_by_itself(bench):
    noise = bench.agent.draw_noise(jax.random.key(0), (SAMPLES,))
    actor_params, observations, internals = bench.agent.actor_params(bench.state), bench.observations, bench.internals
    together = bench.act(actor_params, observations, noise, 5, internals)
    turned = bench.act(
        actor_params, observations[::-1], noise[::-1], 5, jax.tree.map(lambda leaf: leaf[::-1], internals)
    )
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(turned), strict=True):
        np.testing.assert_allclose(one, other[::-1], rtol=1e-5, atol=1e-6)


def test_greedy_actions_are_those_of_the_exported_policy(bench):
    observations, agent = bench.observations, bench.agent
    policy = agent.policy(bench.state, 7)
    assert policy.description.agent == agent.type
    assert policy.description.timestep == 7
    if agent.always_draws:
        # The random agent has no best action.
        assert policy.act(observations).shape == (SAMPLES, *bench.action.shape)
        return
    # A policy does not contain the noise in the parameters that explores.
    actor_params = agent.actor_params(bench.state)._replace(params=bench.state.params)
    internals = jax.tree.map(np.asarray, agent.initial_internals((SAMPLES,)))
    noise = agent.draw_noise(jax.random.key(3), (SAMPLES,))
    outputs = np.asarray(bench.act(actor_params, observations, noise, 5, internals)[1])
    actions, _ = agent.choose(outputs, None, 0, internals, 0.0, np)
    taken = np.asarray(agent.to_environment(jnp.asarray(actions)))
    np.testing.assert_allclose(policy.act(observations), taken, rtol=1e-4, atol=1e-4)
    if agent.type in LEARNERS:
        own, _ = policy.outputs_after(observations, policy.initial_state((SAMPLES,)))
        np.testing.assert_allclose(own, outputs, rtol=1e-4, atol=1e-4)
        # Equal observations would make the comparison weak.
        assert len(np.unique(outputs, axis=0)) > 1


def test_acting_in_numpy_is_acting_in_jax(bench):
    agent, state = bench.agent, bench.state
    if not agent.acts_in_numpy:
        pytest.skip("says itself that it does not")
    noise = np.asarray(agent.draw_noise(jax.random.key(3), (SAMPLES,)))
    actor_params = agent.actor_params(state)
    policy = agent.policy(state._replace(params=actor_params.params), 0)
    own = {name: leaf for name, leaf in bench.internals.items() if name in policy.initial_state()}
    outputs, after = policy.outputs_after(bench.observations, own)
    log_std = policy.tensors.get("head/log_std", 0.0)
    actions, chosen = agent.choose(outputs, noise, 5, bench.internals | after, log_std, np)
    assert isinstance(actions, np.ndarray)
    expected, expected_outputs, expected_internals = bench.draw(3)
    if agent.type in LEARNERS:
        np.testing.assert_allclose(outputs, expected_outputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-4)
    assert chosen.keys() == expected_internals.keys()
    for name, leaf in chosen.items():
        np.testing.assert_allclose(leaf, expected_internals[name], rtol=1e-4, atol=1e-5)


def test_an_exported_policy_keeps_its_own_copy(bench):
    policy = bench.agent.policy(bench.state, 0)
    before = {name: tensor.copy() for name, tensor in policy.tensors.items()}
    for tensor in bench.agent.policy_tensors(bench.state).values():
        tensor += 1.0 if tensor.dtype == np.float32 else 1
    for name, tensor in policy.tensors.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_acting_needs_only_the_acting_part_of_the_state(bench):
    actor_params = bench.agent.actor_params(bench.state)
    assert set(actor_params._fields) == {"params", "observations"}
