"""Learning from demonstrations: before the first action, together with the agent's own data, and after a resume."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from demonstrated import made_up, steady_policy
from runs import experiment, train

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.records import checkpoints
from steppe.runners.engines import learning
from steppe.runners.engines.learning import begin, learn
from steppe.runners.play.recording import RecordingRequest, record
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.running.frequency import Frequency
from steppe.specs.spaces import Box, Discrete
from steppe.tracking.metrics import read_metrics

NETWORK = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])


@pytest.fixture
def make(tmp_path):
    shown = made_up(Box((3,)), Discrete(2), episodes=(20, 30))
    shown.arrays["actions"][:] = shown.arrays["observations"][:, 0] > 0
    path = str(shown.save(tmp_path / "made_up"))

    def make(**settings):
        situation = AgentContext(Box((3,)), Discrete(2), NETWORK, num_envs=2)
        settings = {"batch_size": 8, "n_step": 3, "pretraining_updates": 5, "demonstrations": path} | settings
        return agents.make(AgentSpec.model_validate({"type": "dqfd", **settings}), situation)

    return make


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    """Two good episodes."""
    spec = experiment({"id": "CartPole-v1", "backend": "gymnasium"}, "random")
    shown, _ = record(steady_policy(), spec, RecordingRequest(episodes=2))
    return str(shown.save(tmp_path_factory.mktemp("demonstrations") / "cartpole"))


def tiny(cartpole, **settings):
    return {
        "type": "dqfd",
        "demonstrations": cartpole,
        "batch_size": 16,
        "pretraining_updates": 20,
        "memory": {"capacity": 256},
    } | settings


def test_pretraining_takes_its_updates_before_the_first_timestep(make):
    agent = make()
    learner = begin(agent, jax.random.key(0))
    assert learner.agent.updates == 5
    assert learner.memory.filled == 0
    fresh = begin(agent, jax.random.key(0), pretrains=False)
    assert fresh.agent.updates == 0
    assert np.any(np.asarray(learner.agent.params) != np.asarray(fresh.agent.params))
    np.testing.assert_array_equal(fresh.agent.params, agent.init(jax.random.key(0)).params)


def test_pretraining_in_several_calls_is_the_same_as_in_one(make, monkeypatch):
    agent = make(pretraining_updates=7, memory={"type": "prioritized_replay"})
    whole = begin(agent, jax.random.key(0))
    monkeypatch.setattr(learning, "PRETRAINING_CHUNK", 3)
    pieces = begin(agent, jax.random.key(0))
    assert whole.agent.updates == pieces.agent.updates == 7
    np.testing.assert_array_equal(whole.agent.params, pieces.agent.params)
    np.testing.assert_array_equal(whole.memory.tree, pieces.memory.tree)


def test_pretraining_learns_the_demonstrated_actions(make):
    agent = make(pretraining_updates=1000, supervised_weight=10.0, learning_rate=3e-3)
    before, after = (begin(agent, jax.random.key(0), pretrains=pretrains) for pretrains in (False, True))
    shown = agent.demonstrations

    def agreement(learner):
        outputs, _ = agent.outputs(agent.actor_params(learner.agent), shown.observations[:, 0], {})
        return np.mean(np.argmax(outputs, -1) == shown.actions[:, 0])

    assert agreement(before) < 0.7
    assert agreement(after) > 0.9


def test_prioritised_pretraining_remembers_errors_of_demonstrations(make):
    agent = make(memory={"type": "prioritized_replay"})
    tree = np.asarray(begin(agent, jax.random.key(0)).memory.tree)
    priorities = tree[len(tree) // 2 :][:50]
    assert len(np.unique(priorities)) > 5
    np.testing.assert_allclose(tree[1], priorities.sum(), rtol=1e-4)


def test_no_pretraining_unless_it_is_asked_for(make):
    agent = make(pretraining_updates=0)
    np.testing.assert_array_equal(begin(agent, jax.random.key(0)).agent.params, agent.init(jax.random.key(0)).params)


@pytest.mark.parametrize("memory", ["replay", "prioritized_replay"])
def test_later_batches_mix_demonstrations_with_the_agents_own_timesteps(make, memory):
    from steppe.agents._base import Trajectory

    agent = make(memory={"type": memory}, demo_batch_size=3, update_frequency=4, updates=2)
    rng, lead = np.random.default_rng(0), (agent.horizon, 2)
    flags = np.zeros(lead, bool)
    numbers = rng.normal(size=(2, *lead, 3)).astype(np.float32)
    rewards = np.ones(lead, np.float32)
    trajectory = Trajectory(
        numbers[0], flags.astype(np.int32), rewards, flags, flags, numbers[1], np.zeros((*lead, 2)), rewards, {}, {}
    )
    learner = begin(agent, jax.random.key(0))
    shown = jax.tree.map(np.asarray, learner.memory.demonstrations)
    learner, metrics = jax.jit(lambda learner: learn(agent, learner, trajectory))(learner)
    # 8 timesteps are enough for the agent's own 5 transitions of a batch.
    assert metrics["updates"] == 2
    assert learner.agent.updates == 7
    assert metrics["supervised_loss"] > 0
    assert "priorities" not in metrics
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, learner.memory.demonstrations), shown)


def test_resume_continues_bit_for_bit(tmp_path, cartpole):
    agent = tiny(cartpole, dueling=True, memory={"type": "prioritized_replay", "capacity": 256})
    spec = experiment(agent=agent, total_timesteps=1024)
    train(tmp_path / "whole", spec)
    train(tmp_path / "halves", spec.model_copy(update={"total_timesteps": 512}))
    train(tmp_path / "halves", spec, resume=True)
    whole, halves = (checkpoints.load_latest(tmp_path / name).arrays for name in ("whole", "halves"))
    assert whole.keys() == halves.keys()
    assert "learner/memory/demonstrations/rewards" in whole
    for name, array in whole.items():
        assert array.tobytes() == halves[name].tobytes(), name


def test_a_host_environment_learns_from_demonstrations_and_resumes(tmp_path, cartpole):
    spec = experiment({"id": "CartPole-v1", "backend": "gymnasium"}, tiny(cartpole))
    spec = spec.model_copy(update={"total_timesteps": 512, "summary_frequency": Frequency(64, "t")})
    first = train(tmp_path, spec.model_copy(update={"total_timesteps": 256}))
    before = checkpoints.load_latest(tmp_path)
    outcome = train(tmp_path, spec, resume=True)
    assert (first.timestep, outcome.timestep) == (256, 512)
    after = checkpoints.load_latest(tmp_path)
    # Pretraining is in the checkpoint; a resume does not repeat it.
    assert after.arrays["agent/updates"] - before.arrays["agent/updates"] == outcome.update - first.update
    assert any("supervised_loss" in line for line in read_metrics(tmp_path))
