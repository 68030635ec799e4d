"""For every agent, one worker with its servers has the rollouts and steps of run mode single."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from demonstrated import made_up_file
from runs import experiment

from steppe.runners._base import ChunkLimits
from steppe.runners.engines.distributed.gradient_tape import parts_of, rates_from, steps_per_rollout
from steppe.runners.engines.distributed.moments import NormalizerMoments, moments
from steppe.runners.engines.distributed.parameter_server import ParameterServer, Push, fresh_state
from steppe.runners.engines.distributed.plan import borders_of, shard_config
from steppe.runners.engines.distributed.rollout_learner import CompiledRolloutLearner, HostRolloutLearner, StartingPoint
from steppe.runners.engines.distributed.shards import split_state
from steppe.runners.engines.learning import begin
from steppe.runners.setup import make_engine

NETWORK = [{"type": "dense", "size": 8, "activation": "tanh"}]
MEMORY = {"batch_size": 8, "learning_starts": 16, "memory": {"capacity": 256}, "update_frequency": 4}
POLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
NORMALIZED = {"id": PENDULUM, "normalize_observations": True, "normalize_rewards": True}
DECAYING = {"learning_rate": 0.01, "learning_rate_decay": "linear", "optimizer": "rmsprop"}
TWO_OPTIMIZERS = {"baseline_optimizer": {"type": "adam", "learning_rate": 0.003}}
PRIORITIZED = {"memory": {"type": "prioritized_replay", "capacity": 256}, "target_sync_frequency": 3}
CASES = {
    "ppo": (POLE, {"type": "ppo", "horizon": 8, "epochs": 2, "minibatches": 2}),
    "ppo, two optimisers, normalised": (
        NORMALIZED,
        {"type": "ppo", "horizon": 8, "epochs": 1, "minibatches": 2} | TWO_OPTIMIZERS,
    ),
    "vpg, evolutionary": (POLE, {"type": "vpg", "horizon": 4, "optimizer": "evolutionary", "learning_rate": 0.01}),
    "vpg, decaying": (POLE, {"type": "vpg", "horizon": 4} | DECAYING),
    "a2c": (POLE, {"type": "a2c"}),
    "impala, several steps": (
        POLE,
        {"type": "impala", "horizon": 4, "optimizer": {"type": "multi_step", "num_steps": 2, "optimizer": "adam"}},
    ),
    "pqn": (POLE, {"type": "pqn", "horizon": 4, "epochs": 2, "minibatches": 2}),
    "dqn": (POLE, {"type": "dqn", "updates": 2, "target_sync_frequency": 3, **MEMORY}),
    "qr_dqn, prioritised": (POLE, {"type": "qr_dqn", "quantiles": 4, **MEMORY} | PRIORITIZED),
    "ddpg": (PENDULUM, {"type": "ddpg", **MEMORY}),
    "sac": (PENDULUM, {"type": "sac", **MEMORY}),
    "naf": (PENDULUM, {"type": "naf", **MEMORY}),
}
QUICK = {"vpg, decaying", "qr_dqn, prioritised"}
"""One agent of each kind; each compiles two programs, so the others are in the slow suite."""
ROLLOUTS = 12


def spec_of(case):
    environment, agent = CASES[case]
    return experiment(environment, agent, network=NETWORK, total_timesteps=1000)


class Shared:
    """Parameter servers in this process."""

    def __init__(self, spec, work, state, count):
        agent, self.rows = work.agent, work.rows
        self.parts = parts_of(agent)
        self.borders = borders_of(agent.layout.size, count)
        normalizes = agent.normalizes_observations or agent.context.normalize_rewards
        seen = NormalizerMoments(moments(state.observations), moments(state.returns)) if normalizes else None
        whole = fresh_state(np.array(state.params), np.array(state.target), 0, seen)
        self.servers = []
        for each, start, stop in zip(
            split_state(whole, self.borders, self.parts), self.borders, self.borders[1:], strict=False
        ):
            self.servers.append(ParameterServer(shard_config(spec, agent, self.parts, start, stop)))
            self.servers[-1].restore(each)

    @property
    def params(self):
        return np.concatenate([server.params for server in self.servers])

    @property
    def base(self):
        version = self.servers[0].version
        rates = [rates_from(part, version, self.rows) for part in self.parts]
        target = np.concatenate([server.target for server in self.servers])
        return StartingPoint(self.params, target, version, rates, self.servers[0].seen)

    def push(self, sequence, done):
        for index, server in enumerate(self.servers):
            shard = np.ascontiguousarray(done.gradients[:, self.borders[index] : self.borders[index + 1]])
            server.push(Push(0, sequence, server.version, shard, seen=done.seen if index == 0 else None))


def begun(spec, rollouts, seed=1):
    """A rollout learner with the randomness of run mode single."""
    engine = make_engine(spec, shards=1)
    work = CompiledRolloutLearner(engine.agent, engine.rollout, rollouts)
    work.begin(seed, 0)
    agent_key, envs = engine._begin(np.array([0, seed], np.uint32))
    work._run = work._run._replace(learner=begin(work.agent, agent_key, pretrains=False), envs=envs)
    return work


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.learning) for case in CASES]
)
def test_one_worker_and_two_servers_learn_the_same_as_run_mode_single(case):
    spec = spec_of(case)
    alone = make_engine(spec, shards=1)
    alone.begin(1)
    work = begun(spec, 3)
    shared = Shared(spec, work, work._run.learner.agent, 2)
    start = shared.params
    chunk = alone.advance(ROLLOUTS, 0, ChunkLimits())
    per_rollout, returns = work.timesteps_per_rollout, []
    for sequence in range(ROLLOUTS // 3):
        done = work.run(shared.base, 3, sequence * 3 * per_rollout, per_rollout)
        shared.push(sequence, done)
        returns += done.returns
    expected = alone._run.learner.agent
    assert chunk.columns["updates"].sum() == shared.servers[0].version * (1 + ("two" in case)) > 0
    assert np.abs(shared.params - start).max() > 1e-3
    np.testing.assert_allclose(shared.params, expected.params, atol=2e-4)
    np.testing.assert_allclose(shared.base.target, expected.target, atol=2e-4)
    assert len(returns) == chunk.columns["episodes"].sum()
    if shared.base.seen is not None:
        np.testing.assert_allclose(shared.base.seen.observations.mean, expected.observations.mean, atol=1e-4)
        np.testing.assert_allclose(shared.base.seen.returns.variance, expected.returns.variance, rtol=1e-3)


@pytest.fixture(scope="module")
def small():
    """(spec, rollout learner), compiled once for several tests, which may begin it again."""
    agent = {"type": "vpg", "horizon": 8, "max_gradient_norm": 0.01}
    spec = experiment(POLE, agent, network=NETWORK, total_timesteps=1000)
    engine = make_engine(spec, shards=1)
    return spec, CompiledRolloutLearner(engine.agent, engine.rollout, 3)


@pytest.fixture
def work_and_servers(small):
    spec, work = small
    work.begin(1, 0)
    return work, Shared(spec, work, work._run.learner.agent, 1)


def test_the_change_is_the_sum_of_the_workers_steps(work_and_servers):
    work, shared = work_and_servers
    start = shared.params
    done = work.run(shared.base, 2, 0, work.timesteps_per_rollout)
    shared.push(0, done)
    np.testing.assert_allclose(start + done.change, shared.params, atol=1e-6)


def test_gradients_are_clipped_before_they_leave_the_worker(work_and_servers):
    work, shared = work_and_servers
    gradients = work.run(shared.base, 3, 0, 16).gradients
    np.testing.assert_allclose(np.linalg.norm(gradients, axis=1), 0.01, rtol=1e-4)


def test_fewer_rollouts_than_room_give_fewer_gradients(work_and_servers):
    work, shared = work_and_servers
    done = work.run(shared.base, 1, 0, 0)
    assert steps_per_rollout(work.agent) == len(done.gradients) == 1
    assert done.timesteps == work.timesteps_per_rollout


def test_a_loss_that_is_not_finite_is_reported(work_and_servers):
    work, shared = work_and_servers
    broken = shared.base._replace(params=np.full_like(shared.params, np.nan))
    assert not work.run(broken, 2, 0, 0).is_healthy


def test_a_workers_checkpoint_continues_bit_for_bit(work_and_servers):
    work, shared = work_and_servers
    shared.push(0, work.run(shared.base, 3, 0, 0))
    left, base = work.arrays(), shared.base
    assert not any("params" in name or "gradients" in name for name in left), "the servers have them"
    expected = work.run(base, 3, 96, 0)
    work.begin(1, 5, left)
    again = work.run(base, 3, 96, 0)
    np.testing.assert_array_equal(again.gradients, expected.gradients)
    np.testing.assert_array_equal(again.change, expected.change)
    assert again.returns == expected.returns


def test_workers_have_streams_of_their_own(small):
    _, work = small
    starts = []
    for number in (0, 1, 0):
        work.begin(7, number)
        starts.append(jax.tree.map(np.asarray, work._run.envs.states))
    np.testing.assert_array_equal(jax.tree.leaves(starts[0])[0], jax.tree.leaves(starts[2])[0])
    assert not np.array_equal(jax.tree.leaves(starts[0])[0], jax.tree.leaves(starts[1])[0])


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(CASES["ppo"][1], marks=pytest.mark.learning, id="ppo"),
        pytest.param({"type": "vpg", "rollout_episodes": 1}, marks=pytest.mark.learning, id="vpg of whole episodes"),
        pytest.param(CASES["dqn"][1], id="dqn"),
    ],
)
def test_host_environments_work_as_well(agent):
    environment = {"id": "CartPole-v1", "backend": "gymnasium", "normalize_observations": True}
    num_envs = 1 if "rollout_episodes" in agent else 4
    spec = experiment(environment, agent, network=NETWORK, num_envs=num_envs)
    engine = make_engine(spec)
    work = HostRolloutLearner(engine.agent, engine.envs, 4)
    try:
        work.begin(1, 0)
        shared = Shared(spec, work, work._learner.agent, 2)
        start, timesteps = shared.params, 0
        for sequence in range(4):
            done = work.run(shared.base, 4, 0, work.timesteps_per_rollout)
            before = shared.params
            shared.push(sequence, done)
            timesteps += done.timesteps
            np.testing.assert_allclose(before + done.change, shared.params, atol=1e-5)
        left = work.arrays()
        work.begin(1, 0, left)
        _is_as_it_was(work, left)
    finally:
        work.close()
    assert shared.base.seen.observations.samples == timesteps
    if "rollout_episodes" in agent:
        assert timesteps < 16 * work.timesteps_per_rollout, "rollouts end with their episodes"
    else:
        assert timesteps == 16 * work.timesteps_per_rollout
    assert np.abs(shared.params - start).max() > 1e-3
    assert np.isfinite(done.metrics["loss"])


def _is_as_it_was(work, left):
    for name, array in work.arrays().items():
        # Episodes start again, which draws one number and ends those in the memory.
        if not name.endswith(("rng", "truncated")):
            np.testing.assert_array_equal(array, left[name], err_msg=name)


@pytest.mark.learning
def test_an_agent_that_begins_with_demonstrations_can_work():
    situation = make_engine(spec_of("dqn"), shards=1).agent.context
    shown = made_up_file(situation.observation, situation.action)
    agent = {"type": "dqfd", "demonstrations": shown, "pretraining_updates": 5, **MEMORY}
    spec = experiment(POLE, agent, network=NETWORK)
    work = begun(spec, 4)
    shared = Shared(spec, work, work._run.learner.agent, 1)
    for sequence in range(4):
        shared.push(sequence, work.run(shared.base, 4, 0, 0))
    assert shared.servers[0].version > 0
