"""Rollouts of small networks are one kernel, others are not, and both give the same results."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.envs._base import CompiledEnv
from steppe.envs.registry import compiled_ids, make_compiled
from steppe.runners import keys
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.compiled.rollout import Rollout
from steppe.runners.engines.threads.engine import ThreadsEngine
from steppe.runners.engines.threads.exploration import final_epsilon_of
from steppe.runners.play.episodes import EpisodeRules
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

TOLD = ("change 0", "metrics", "learned", "healthy", "ended", "ended_returns", "ended_lengths")


class Hand(NamedTuple):
    cards: jax.Array
    round: jax.Array


class Sorting(CompiledEnv):
    """An environment whose steps sort, which a kernel cannot contain."""

    id: ClassVar[str] = "Sorting-v0"

    @property
    def observation_space(self):
        return Box((5,))

    @property
    def action_space(self):
        return Discrete(2)

    def reset(self, key):
        return Hand(jax.random.normal(key, (5,)), jnp.int32(0))

    def step(self, state, action):
        cards = jnp.sort(state.cards * jnp.where(action == 0, 1.0, -1.0))
        return Hand(cards, state.round + 1), cards[2], state.round >= 9

    def observe(self, state):
        return state.cards


def engine_of(env, num_envs=4, size=16, workers=2, agent="a3c", **settings):
    network = NetworkSpec([{"type": "dense", "size": size, "activation": "tanh"}])
    where = AgentContext(
        env.observation_space, env.action_space, num_envs=num_envs, network=network, total_timesteps=640
    )
    made = agents.make(AgentSpec.model_validate({"type": agent, **(settings or {"horizon": 8})}), where)
    rules = EpisodeRules(EnvironmentSpec.model_validate({"id": "CartPole-v1"}))
    return ThreadsEngine(made, workers, rules, Rollout(made, env, 20), None)


def program_after_a_batch(engine):
    engine.begin(1)
    try:
        for worker in engine._workers:
            assert worker.work(0).is_healthy
        return engine._program
    finally:
        engine.close()


@pytest.mark.parametrize("id", compiled_ids())
def test_rollouts_of_every_environment_are_one_kernel(id):
    program = program_after_a_batch(engine_of(make_compiled(EnvironmentSpec.model_validate({"id": id}))))
    assert program._collects_in_one_kernel


@pytest.mark.parametrize(("num_envs", "size"), [(17, 16), (4, 65)])
def test_products_of_many_rows_or_wide_layers_are_left_to_a_library(num_envs, size):
    engine = engine_of(make_compiled(EnvironmentSpec.model_validate({"id": "CartPole-v1"})), num_envs, size)
    assert not program_after_a_batch(engine)._collects_in_one_kernel


def test_environments_that_do_not_fit_into_one_kernel_are_compiled_without():
    program = program_after_a_batch(engine_of(Sorting()))
    assert not program._collects_in_one_kernel


def test_threads_that_meet_a_rollout_that_does_not_fit_all_go_on():
    engine = engine_of(Sorting(), workers=4)
    engine.begin(1)
    try:
        assert engine.advance(20, 0, ChunkLimits()).iterations == 20
    finally:
        engine.close()


def test_one_kernel_and_many_give_the_same_rollouts():
    env = make_compiled(EnvironmentSpec.model_validate({"id": "CartPole-v1"}))
    results = []
    for in_one_kernel in (True, False):
        engine = engine_of(env, workers=1)
        engine._build(1, pretrains=True)
        program = engine._program
        program._collects_in_one_kernel = in_one_kernel
        (worker,) = engine._workers
        engine.model.read(worker._reading)
        packed, _, report = program.first(program.begin(keys.make(3), ()), None, worker._words)
        results.append((program.unpacked(packed), {name: np.array(report[name]) for name in TOLD}))
        assert program._collects_in_one_kernel == in_one_kernel
    (carried, told), (plain_carried, plain_told) = results
    for one, other in zip(
        jax.tree.leaves(carried.envs.states), jax.tree.leaves(plain_carried.envs.states), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for name, value in told.items():
        np.testing.assert_allclose(value, plain_told[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_each_worker_explores_to_its_own_degree():
    env = make_compiled(EnvironmentSpec.model_validate({"id": "CartPole-v1"}))
    engine = engine_of(env, workers=2, agent="dqn", update_frequency=64)
    engine._build(1, pretrains=True)
    # Action 0 has the highest value for every observation.
    layout = engine.agent.layout
    engine.model.params[...] = 0.0
    layout.named(engine.model.params)["head/bias"][0] = 1.0
    shares = []
    for worker, final_epsilon in zip(engine._workers, (0.0, 1.0), strict=True):
        assert float(worker._reading.final_epsilon) == pytest.approx(final_epsilon_of(1, worker.index))
        engine.model.read(worker._reading)
        worker._reading.timestep[...] = 10**6
        worker._reading.final_epsilon[...] = final_epsilon
        _, trajectory, _ = engine._program._collect(worker._carry, worker._words)
        shares.append(float(np.mean(np.asarray(trajectory.actions) != 0)))
    assert shares[0] == 0.0
    assert 0.3 < shares[1] < 0.7


def test_workers_that_keep_step_with_each_other_do_not_both_leave_the_actor_out():
    env = make_compiled(EnvironmentSpec.model_validate({"id": "Pendulum-v1"}))
    engine = engine_of(env, workers=2, agent="td3", learning_starts=0, batch_size=4, policy_delay=2)
    engine._build(1, pretrains=True)
    read = engine.model.read

    def read_after_both(reading):
        read(reading)
        reading.updates[...] = reading.updates // 2 * 2

    engine.model.read = read_after_both
    actor = slice(0, engine.agent.first_of_critics)
    moves = 0
    for timestep in range(20):
        before = engine.model.params.copy()
        batch = engine._workers[timestep % 2].work(timestep)
        assert batch.is_healthy
        if batch.updates:
            moves += bool(np.any(engine.model.params[actor] != before[actor]))
    assert moves == engine.model.updates // 2
    assert moves > 5
