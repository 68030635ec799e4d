"""Runs in threads: exact counts, lossless pauses, and cleanup of threads and processes."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from runs import TINY_DQN, experiment, train

from steppe.errors import CheckpointError, EnvironmentFault, TrainingDiverged
from steppe.policies.policy import load_policy
from steppe.records import checkpoints
from steppe.runners._base import ChunkLimits
from steppe.runners.setup import make_engine
from steppe.tracking.metrics import read_metrics

TINY_A3C = {"type": "a3c", "horizon": 8}
NETWORK = [{"type": "dense", "size": 8, "activation": "tanh"}]
EACH = 32
"""The timesteps of one batch of TINY_A3C in four environments."""
LIMITED = {"total_timesteps": 10_000_000, "max_timesteps_per_episode": 100}
"""There are so many timesteps that no worker can take all of them before the others start."""
HOST = {"id": "CartPole-v1", "backend": "gymnasium"}
FAULTY = '''
import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    """The {number}th that is made breaks in its 21st step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self):
        Faulty.made += 1
        self.number, self.steps = Faulty.made, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        self.steps += 1
        if self.number == {number} and self.steps == 21:
            raise RuntimeError("the wheel came off")
        return np.zeros(2, np.float32), 0.0, False, False, {{}}
'''


def threaded(environment="CartPole-v1", agent=TINY_A3C, workers=2, **fields):
    fields = {"network": NETWORK, **fields}
    return experiment(environment, agent, run_mode="multi-threaded", num_workers=workers, **fields)


@pytest.fixture
def begun():
    """Engines that have begun, closed at the end."""
    engines = []

    def begin(*arguments, seed=1, **fields):
        engines.append(make_engine(threaded(*arguments, **fields)))
        engines[-1].begin(seed)
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("steppe-worker")] == []


@pytest.mark.parametrize("environment", ["CartPole-v1", HOST], ids=["compiled", "gymnasium"])
def test_exactly_as_many_batches_are_run_as_asked_for(begun, environment):
    engine = begun(environment, workers=3)
    timestep = 0
    for iterations in (1, 7, 2):
        chunk = engine.advance(iterations, timestep, ChunkLimits())
        assert chunk.iterations == iterations
        assert chunk.columns["timesteps"].tolist() == [EACH] * iterations
        assert chunk.columns["updates"].tolist() == [1] * iterations
        timestep += iterations * EACH
    assert engine.snapshot()["model/updates"] == 10


def test_a_run_ends_at_the_first_whole_batch_after_its_timesteps(tmp_path):
    outcome = train(tmp_path, threaded(total_timesteps=1000))
    assert (outcome.state, outcome.timestep, outcome.update) == ("completed", 1024, 32)
    assert checkpoints.load_latest(tmp_path).arrays["model/updates"] == 32


@pytest.mark.parametrize("environment", ["CartPole-v1", HOST], ids=["compiled", "gymnasium"])
def test_a_run_ends_with_the_batch_that_finishes_its_episodes(tmp_path, environment):
    outcome = train(tmp_path, threaded(environment, workers=3, episodes=30, summary_frequency=f"{EACH}t"))
    lines = read_metrics(tmp_path)
    assert outcome.reason == "all 30 episodes were run"
    assert outcome.episode >= 30
    # Batches that other workers had begun are finished and count.
    reached = next(index for index, line in enumerate(lines) if line["episode"] >= 30)
    assert len(lines) - reached <= 3
    assert outcome.timestep == EACH * len(lines)
    assert outcome.update == len(lines)


@pytest.mark.parametrize("environment", ["CartPole-v1", HOST], ids=["compiled", "gymnasium"])
def test_a_run_ends_when_the_last_100_episodes_are_good_enough(tmp_path, environment):
    outcome = train(tmp_path, threaded(environment, total_timesteps=200_000, stop_at_return=18.0))
    assert outcome.reason == "the mean return of the last 100 episodes reached 18"
    assert outcome.episode >= 100
    assert outcome.mean_return >= 18.0
    assert outcome.timestep < 200_000
    assert outcome.update == outcome.timestep // EACH
    returns = checkpoints.load_latest(tmp_path).arrays["window/returns"]
    assert len(returns) == 100
    assert returns.mean() == pytest.approx(outcome.mean_return)


@pytest.mark.parametrize("environment", ["CartPole-v1", HOST], ids=["compiled", "gymnasium"])
@pytest.mark.parametrize(("request_", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_request_ends_the_run_with_every_batch_counted_and_resuming_takes_the_rest(
    tmp_path, environment, request_, state
):
    spec, calls = threaded(environment, workers=3, total_timesteps=4000), iter(range(1000))
    outcome = train(tmp_path, spec, request=lambda: request_ if next(calls) == 3 else None)
    assert outcome.state == state
    checkpoint = checkpoints.load_latest(tmp_path)
    assert 0 < checkpoint.timestep == outcome.timestep == EACH * outcome.update < 4000
    assert checkpoint.arrays["model/updates"] == outcome.update
    outcome = train(tmp_path, spec, resume=True)
    assert (outcome.state, outcome.timestep, outcome.update) == ("completed", 4000, 125)
    assert checkpoints.load_latest(tmp_path).arrays["model/updates"] == 125
    # Only compiled environments continue their episodes.
    assert any("environments start new episodes" in notice for notice in outcome.notices) == (environment is HOST)


@pytest.mark.parametrize("agent", [TINY_A3C, TINY_DQN], ids=["a3c", "dqn"])
def test_one_worker_resumes_bit_for_bit(tmp_path, agent):
    spec = threaded(agent=agent, workers=1, total_timesteps=1024)
    train(tmp_path / "whole", spec)
    calls = iter(range(100))
    # Pauses after two chunks, of one and of at most eight iterations; the third could contain all the rest.
    first = train(tmp_path / "halves", spec, request=lambda: "pause" if next(calls) == 2 else None)
    assert first.state == "paused"
    assert 0 < first.timestep < 1024
    train(tmp_path / "halves", spec, resume=True)
    whole, halves = (checkpoints.load_latest(tmp_path / name) for name in ("whole", "halves"))
    assert whole.arrays.keys() == halves.arrays.keys()
    for name, array in whole.arrays.items():
        assert array.tobytes() == halves.arrays[name].tobytes(), name
    counters = ("timestep", "episode", "update", "mean_return")
    assert {name: whole.manifest[name] for name in counters} == {name: halves.manifest[name] for name in counters}


@pytest.mark.parametrize(
    ("environment", "agent"), [("CartPole-v1", TINY_DQN), (HOST, TINY_A3C)], ids=["compiled", "gymnasium"]
)
def test_a_restored_run_has_everything_that_was_saved(begun, environment, agent):
    one = begun(environment, agent, workers=3)
    one.advance(40, 0, ChunkLimits())
    saved = one.snapshot()
    assert saved["model/updates"] > 0
    assert len(saved["window/returns"]) > 0
    other = begun(environment, agent, workers=3, seed=2)
    other.close()
    other.restore(saved, 1)
    again = other.snapshot()
    assert again.keys() == saved.keys()
    for name, array in saved.items():
        if not name.startswith("randomness/"):
            assert array.tobytes() == again[name].tobytes(), name
    chunk = other.advance(6, 40 * EACH, ChunkLimits())
    assert chunk.iterations == 6
    assert chunk.columns["mean_length"][-1] > 0


def test_a_checkpoint_of_another_number_of_workers_is_refused(begun):
    engine = begun(workers=3)
    saved = engine.snapshot()
    engine.close()
    other = begun(workers=2)
    other.close()
    with pytest.raises(CheckpointError, match="is of 3 workers, but this experiment has 2"):
        other.restore(saved, 1)


def test_workers_see_different_episodes_and_draw_different_noise(begun):
    engine = begun(workers=3)
    engine.advance(30, 0, ChunkLimits())
    saved = engine.snapshot()
    positions = [saved[f"workers/{worker}/envs/states/position"] for worker in range(3)]
    keys = [saved[f"workers/{worker}/key"].tobytes() for worker in range(3)]
    assert len({position.tobytes() for position in positions}) == 3
    assert len(set(keys)) == 3


def test_statistics_of_observations_count_every_timestep_of_every_worker(begun):
    environment = {"id": "CartPole-v1", "normalize_observations": True, "normalize_rewards": True}
    engine = begun(environment, workers=3)
    engine.advance(21, 0, ChunkLimits())
    saved = engine.snapshot()
    assert saved["model/observations/samples"] == saved["model/returns/samples"] == 21 * EACH
    assert np.all(saved["model/observations/variance"] > 0)
    np.testing.assert_array_equal(engine.policy(0).tensors["normalizer/mean"], saved["model/observations/mean"])


def test_the_replay_memory_is_shared_out_among_the_workers(begun):
    engine = begun(agent=TINY_DQN, workers=4)
    # Read from the worker, since a checkpoint has only the filled rows of a memory.
    rooms = [worker.carry().memory.timesteps.rewards.size for worker in engine._workers]
    assert rooms == [256 // 4] * 4


def test_metrics_tell_of_workers_lag_and_speed(tmp_path):
    train(tmp_path, threaded(workers=3, total_timesteps=3200, summary_frequency="320t"))
    last = read_metrics(tmp_path)[-1]
    assert last["workers"] == 3
    assert last["updates_per_second"] > 0
    assert 0 <= last["policy_lag"] < 100
    assert np.isfinite([last["loss"], last["entropy"], last["value_loss"]]).all()


def test_evaluations_and_policies_are_of_the_shared_model(tmp_path):
    spec = threaded(total_timesteps=512, evaluation={"every": 256, "episodes": 2})
    train(tmp_path, spec)
    lines = [line for line in read_metrics(tmp_path) if "evaluation_return" in line]
    assert [line["timestep"] for line in lines] == [256, 512]
    policy, arrays = load_policy(tmp_path / "policy"), checkpoints.load_latest(tmp_path).arrays
    flat = np.concatenate([policy.tensors[name].ravel() for name in sorted(policy.tensors)])
    assert np.isin(flat, arrays["model/params"]).all()


def test_evaluations_are_without_the_noise_that_is_explored_with(begun):
    quiet, noisy = begun(), begun(agent=TINY_A3C | {"variable_noise": 100.0})
    assert noisy.evaluate(8, True, 5) == quiet.evaluate(8, True, 5)


def test_statistics_of_rollouts_are_weighted_by_their_length(begun):
    environment = {"id": "worlds:World", "normalize_observations": True, "normalize_rewards": True}
    engine = begun(environment, {"type": "a3c", "rollout_episodes": 2}, num_envs=1)
    chunk = engine.advance(6, 0, ChunkLimits())
    # Each episode has ten timesteps.
    assert chunk.columns["timesteps"].tolist() == [20] * 6
    assert (engine.model.observations.value.samples, engine.model.returns.value.samples) == (120, 120)


def test_agents_that_do_not_learn_only_collect(tmp_path):
    outcome = train(tmp_path, threaded(agent={"type": "random", "horizon": 8}, network=None, total_timesteps=512))
    assert (outcome.timestep, outcome.update) == (512, 0)
    assert outcome.episode > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_raises_ends_the_run_with_that_workers_error(tmp_path, monkeypatch, workers):
    monkeypatch.syspath_prepend(tmp_path)
    # The second environment of the last worker fails; each worker has four.
    number = 6 if workers == 2 else 2
    module = f"faulty_in_threads_{workers}"
    (tmp_path / f"{module}.py").write_text(FAULTY.format(number=number))
    where = "worker 1: environment" if workers == 2 else "environment"
    with pytest.raises(
        EnvironmentFault, match=rf'^{where} "{module}:Faulty" \(number 1\) at step 21: .*the wheel came off'
    ):
        train(tmp_path / "run", threaded(f"{module}:Faulty", workers=workers, **LIMITED))
    checkpoint = checkpoints.load_latest(tmp_path / "run")
    # The failing batch is the third, of 8 steps each; the first two and those of other workers are kept.
    assert checkpoint.timestep == EACH * checkpoint.manifest["update"] >= 2 * EACH
    assert checkpoint.arrays["model/updates"] == checkpoint.manifest["update"]


def processes_of(engine):
    return [part._process for worker in engine._workers for part in worker.envs._stepper._workers]


def test_environments_in_processes_end_with_the_run():
    environment = {"id": "worlds:World", "vectorization": "processes"}
    engine = make_engine(threaded(environment, num_envs=2))
    engine.begin(1)
    engine.advance(4, 0, ChunkLimits())
    processes = processes_of(engine)
    assert len(processes) >= 2
    assert all(process.poll() is None for process in processes)
    engine.close()
    engine.close()
    assert all(process.poll() is not None for process in processes)


def test_an_environment_error_in_a_process_is_raised_and_no_process_stays(begun, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_in_processes.py").write_text(FAULTY.format(number=1))
    environment = {"id": "faulty_in_processes:Faulty", "vectorization": "processes"}
    engine = begun(environment, num_envs=2, **LIMITED)
    processes = processes_of(engine)
    chunk = engine.advance(100, 0, ChunkLimits())
    # A batch has eight steps, so the third one of some worker failed; no worker has begun another.
    assert re.match(r'worker [01]: environment "faulty_in_processes:Faulty" .*the wheel came off', str(chunk.fault))
    assert 2 <= chunk.iterations <= 4
    engine.close()
    assert all(process.poll() is not None for process in processes)


def test_a_beginning_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "only_four.py").write_text(
        FAULTY.format(number=99).replace("Faulty.made += 1", "Faulty.made += 1\n        assert Faulty.made <= 4")
    )
    engine = make_engine(threaded("only_four:Faulty", workers=2, **LIMITED))
    with pytest.raises(Exception, match="only_four"):
        engine.begin(1)
    engine.close()


def test_a_loss_that_is_no_number_never_reaches_a_checkpoint(tmp_path):
    agent = {**TINY_A3C, "learning_rate": 1e30, "max_gradient_norm": None}
    with pytest.raises(TrainingDiverged, match="the last good checkpoint is of timestep"):
        train(tmp_path, threaded(agent=agent, total_timesteps=4096))
    assert np.isfinite(checkpoints.load_latest(tmp_path).arrays["model/params"]).all()


def test_a_workers_error_is_raised_by_the_run(begun, monkeypatch):
    engine = begun()

    def broken(carry, trajectory, words):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(engine._program, "first", broken)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        engine.advance(4, 0, ChunkLimits())
