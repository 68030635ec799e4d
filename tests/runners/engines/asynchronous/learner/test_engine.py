"""Whole runs of the async engine: limits, pause and resume, metrics, faults, and cleanup."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from crews import Threads, async_engine, train_async
from processes import wait_until
from runs import experiment

from steppe.errors import CheckpointError
from steppe.policies.policy import load_policy
from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.asynchronous.learner import engine as engine_module
from steppe.runners.engines.asynchronous.learner.engine import Meter
from steppe.runners.loop import TrainingLoop
from steppe.tracking.metrics import read_metrics

DQN = {
    "type": "dqn",
    "batch_size": 16,
    "learning_starts": 200,
    "update_frequency": 4,
    "n_step": 1,
    "memory": {"capacity": 2000},
    "exploration": {"type": "epsilon_anneal", "timesteps": 1000},
}
LEAN = [{"type": "dense", "size": 16}]
SUPPORT = Path(__file__).parents[4] / "support"


def world(agent=DQN, environment="worlds:World", **fields):
    fields = {"num_workers": 2, "num_envs": 1, "network": LEAN, "total_timesteps": 3000, "run_mode": "async"} | fields
    return experiment(environment, agent, **fields)


@pytest.fixture(autouse=True)
def _leaves_no_thread():
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before, "all threads have ended", seconds=20)


@pytest.mark.parametrize("environment", ["worlds:Dictionary", "worlds:Shifted"])
def test_dqn_learns_from_two_workers(tmp_path, environment):
    outcome = train_async(tmp_path, world(environment=environment))
    assert outcome.mean_return > 8.0
    assert 3000 <= outcome.timestep < 3064
    # One update for four timesteps from the 200th on, as in run mode single.
    assert outcome.update == pytest.approx((outcome.timestep - 200) / 4, abs=80)
    assert load_policy(tmp_path / "policy").description.timestep == outcome.timestep


def test_impala_learns_from_workers_with_other_numbers_of_environments(tmp_path):
    agent = {"type": "impala", "horizon": 10, "learning_rate": 0.01}
    spec = world(agent, num_envs=3, total_timesteps=9000, asynchronous={"trajectories_per_update": 4})
    outcome = train_async(tmp_path, spec)
    assert outcome.mean_return > 8.0
    assert outcome.update == pytest.approx(outcome.timestep / 40, rel=0.1)


def test_sac_learns_with_preprocessing_and_normalised_rewards(tmp_path):
    agent = {
        "type": "sac",
        "batch_size": 32,
        "learning_starts": 200,
        "learning_rate": 3e-3,
        "discount": 0.5,
        "memory": {"capacity": 2000},
        "states_preprocessing": [{"type": "sequence", "length": 2}],
        "reward_preprocessing": [{"type": "divide", "scale": 2.0}],
    }
    environment = {"id": "worlds:Continuous", "normalize_rewards": True}
    outcome = train_async(tmp_path, world(agent, environment, total_timesteps=1500, num_envs=2))
    assert outcome.mean_return > -20


def test_every_line_of_metrics_says_how_the_workers_do(tmp_path):
    train_async(tmp_path, world(summary_frequency="500t", asynchronous={"evaluation_share": 0.2}))
    last = read_metrics(tmp_path)[-1]
    assert last["workers"] == 2
    assert last["dropped"] == last["lost"] == 0
    assert last["updates_per_second"] > 0
    assert 0 < last["learner_utilisation"] <= 1
    assert 0 <= last["policy_lag"] < 1000
    assert last["evaluation_return"] > 8.0
    assert last["evaluation_length"] == 10
    assert np.isfinite(last["loss"])


def test_a_new_policy_is_posted_even_if_nobody_fetched_the_last_one():
    engine = async_engine(world())
    engine._pool.count = 0
    try:
        engine.begin(1)
        board = engine._server.board
        for updates in (5, 9):
            engine.core.updates = updates
            wait_until(lambda n=updates: (engine.advance(8, 0, ChunkLimits()), board.version)[1] == n, "it is posted")
            assert not board.is_wanted
    finally:
        engine.close()


def test_a_run_ends_with_the_batch_that_reaches_a_limit(tmp_path):
    spec = world(episodes=50, total_timesteps=None, asynchronous={"batch_timesteps": 10})
    outcome = train_async(tmp_path / "episodes", spec)
    assert (outcome.episode, outcome.reason) == (50, "all 50 episodes were run")
    spec = world(stop_at_return=7.0, total_timesteps=20_000, asynchronous={"batch_timesteps": 10})
    outcome = train_async(tmp_path / "return", spec)
    assert "reached 7" in outcome.reason
    assert 7.0 <= outcome.mean_return < 8.0


def test_episodes_as_batches(tmp_path):
    lengths = set()

    class Watched(Threads):
        def start(self, server, token):
            put = server.inbox.put
            server.inbox.put = lambda batch, *rest: (lengths.add(batch.timesteps), put(batch, *rest))[1]
            super().start(server, token)

    spec = world(total_timesteps=500, asynchronous={"batch_timesteps": "episode", "evaluation_share": 0.0})
    engine = async_engine(spec)
    engine._pool = Watched(engine._rules, 1, 2)
    try:
        engine.begin(1)
        while engine._timestep < 500:
            engine.advance(8, engine._timestep, ChunkLimits())
    finally:
        engine.close()
    assert lengths == {10}


def test_a_resumed_run_continues_with_memory_window_and_counts(tmp_path):
    first = train_async(tmp_path, world(total_timesteps=1000))
    saved = load_latest(tmp_path)
    assert saved.arrays["memory/timesteps/rewards"].any()
    spec = world(total_timesteps=3000)
    second = train_async(tmp_path, spec, checkpoint=saved)
    assert second.timestep >= 3000
    assert second.update > first.update
    assert second.mean_return > 8.0
    arrays = load_latest(tmp_path).arrays
    numbers, _, _, starts, timestep = arrays["async/counts"].tolist()
    assert (numbers, starts, timestep) == (4, 1, second.timestep)


def test_a_restored_engine_explores_as_far_as_it_had_come(tmp_path):
    train_async(tmp_path, world(total_timesteps=1200))
    engine = async_engine(world())
    try:
        engine.restore(load_latest(tmp_path).arrays, 1)
        news = engine._server.board.news(-1, "")
        assert news["timestep"] >= 1200
        assert news["exploration"]["epsilon"] < 0.1
    finally:
        engine.close()


def test_batches_waiting_at_a_checkpoint_count_as_dropped_after_a_resume():
    engine = async_engine(world(asynchronous={"queue_size": 3, "evaluation_share": 0.0}))
    try:
        engine.begin(1)
        wait_until(lambda: len(engine._server.inbox) == 3, "workers have filled the inbox")
        assert engine.snapshot()["async/counts"][1] == 3
        assert engine.dropped == 0
    finally:
        engine.close()


def test_waiting_batches_count_as_dropped_only_when_the_run_ends(tmp_path):
    spec = world(num_workers=3, total_timesteps=10**6, asynchronous={"queue_size": 1, "patience": 60.0})
    engine = async_engine(spec)
    received = []

    def request():
        # One batch is in the queue, and each worker has another one in line.
        wait_until(lambda: engine._server.inbox.waiting == 4, "all wait")
        received.append(engine._server.membership.batches)
        # If the learner is killed after this checkpoint, the waiting workers send their batches again.
        assert load_latest(tmp_path).arrays["async/counts"][1] <= 1
        return "pause"

    try:
        TrainingLoop(spec, engine, tmp_path, request, lambda progress: None).run(None)
    finally:
        engine.close()
    assert load_latest(tmp_path).timestep == 0
    # No batch was learned from, and all received batches are counted.
    assert load_latest(tmp_path).arrays["async/counts"].tolist() == [3, received[0], 0, 0, 0]
    assert received == [4]


@pytest.mark.parametrize("busy_with", ["evaluate", "snapshot"])
def test_workers_do_not_time_out_while_the_learner_evaluates_or_saves(tmp_path, monkeypatch, busy_with):
    wishes = {"queue_size": 1, "patience": 1.0, "update_to_data": 0.01}
    often = {"evaluation": {"every": 1000, "episodes": 1}, "saver_frequency": "1000t"}
    spec = world(total_timesteps=1500, asynchronous=wishes, **often)
    engine = async_engine(spec)
    method, dropped = getattr(engine, busy_with), []

    def busy(*arguments):
        if not dropped and engine._timestep:
            inbox = engine._server.inbox
            wait_until(lambda: inbox.waiting >= 2, "a worker stands in line")
            # A batch whose timeout had almost passed before may still be dropped.
            time.sleep(1.0)
            dropped.append(inbox.dropped)
            # This is longer than any timeout.
            time.sleep(2.5)
            dropped.append(inbox.dropped)
        return method(*arguments)

    monkeypatch.setattr(engine, busy_with, busy)
    try:
        TrainingLoop(spec, engine, tmp_path, lambda: None, lambda progress: None).run(None)
    finally:
        engine.close()
    before, after = dropped
    assert after == before


def test_updates_without_timesteps_are_saved(tmp_path):
    wishes = {"update_to_data": "max"}
    spec = world(num_workers=1, total_timesteps=10**6, saver_frequency="64t", asynchronous=wishes)
    engine, seen, saved = async_engine(spec), [], []

    def request():
        if not saved and seen[-1].update and list_checkpoints(tmp_path)[-1] == seen[-1].timestep:
            # From now on no batch arrives.
            saved.append(seen[-1])
            engine._server.inbox.take = lambda: None
        return "pause" if saved and seen[-1].update > saved[0].update + 10 else None

    try:
        outcome = TrainingLoop(spec, engine, tmp_path, request, seen.append).run(None)
    finally:
        engine.close()
    last = load_latest(tmp_path)
    assert (last.timestep, last.manifest["update"]) == (saved[0].timestep, outcome.update)


def test_trajectories_that_do_not_fill_a_batch_yet_count_as_dropped_too():
    agent, wishes = {"type": "impala", "horizon": 10}, {"trajectories_per_update": 100, "queue_size": 2}
    engine = async_engine(world(agent, num_workers=1, asynchronous=wishes))
    try:
        engine.begin(1)
        taken = 0
        while taken < 3:
            taken += engine.advance(3 - taken, 0, ChunkLimits()).iterations
        # A worker that waits sends no more until a batch is taken.
        wait_until(lambda: engine._server.inbox.waiting == 3, "the worker stands in line")
        assert engine.snapshot()["async/counts"][1] == 3 + 2
    finally:
        engine.close()


def test_workers_that_do_not_wait_drop_batches_and_the_queue_stays_bounded():
    engine = async_engine(world(asynchronous={"queue_size": 2, "patience": 0.0}))
    try:
        engine.begin(1)
        # The engine does not learn, so there is room for the first two batches only.
        wait_until(lambda: engine.dropped > 20, "batches are dropped")
        assert len(engine._server.inbox) == 2
        chunk = engine.advance(1024, 0, ChunkLimits())
        assert chunk.columns["dropped"][-1] > 20
    finally:
        engine.close()


def test_a_call_takes_no_more_batches_than_asked_and_does_not_learn_all_that_is_owed_at_once(monkeypatch):
    wishes = {"update_to_data": 1e6, "batch_timesteps": 16, "queue_size": 4}
    # A batch before a greedy episode ends with its episode and may be too short, so evaluations are off.
    engine = async_engine(world(asynchronous=wishes | {"evaluation_share": 0}))
    try:
        engine.begin(1)
        wait_until(lambda: len(engine._server.inbox) == 4, "there is work")
        with monkeypatch.context() as patched:
            # The call lasts until all requested batches are received, however slow the machine is.
            patched.setattr(engine_module, "ADVANCE_SECONDS", 60.0)
            for iterations in (1, 3):
                chunk = engine.advance(iterations, 0, ChunkLimits())
                assert chunk.iterations == iterations
                assert chunk.columns["timesteps"].tolist() == [16] * iterations
        while engine.core.wants_data:
            engine.advance(1, 0, ChunkLimits())
        engine.advance(1, 0, ChunkLimits())  # now the update is compiled
        started = time.monotonic()
        chunk = engine.advance(100, 0, ChunkLimits())
        # All updates that are due would take many minutes.
        assert time.monotonic() - started < 20.0
        # Updates are behind, so no batch is received until they have caught up.
        assert (chunk.iterations, chunk.columns["timesteps"].tolist()) == (1, [0])
        assert chunk.columns["updates"][0] > 0
    finally:
        engine.close()


def test_learning_does_not_starve_under_too_many_batches(monkeypatch):
    engine = async_engine(world(asynchronous={"update_to_data": "max", "queue_size": 64}))
    core, turns = engine.core, []
    take_in, learn = core.take_in, core.learn
    try:
        engine.begin(1)
        wait_until(lambda: len(engine._server.inbox) == 64, "there is more than enough")
        while not core.can_learn:
            core.take_in(engine._server.inbox.take())
        monkeypatch.setattr(core, "take_in", lambda batch: (turns.append("takes"), time.sleep(0.03), take_in(batch)))
        monkeypatch.setattr(core, "learn", lambda seconds: (turns.append("learns"), learn(seconds))[1])
        engine.advance(64, 0, ChunkLimits())
    finally:
        engine.close()
    # At most two batches fit into one turn, although more were waiting.
    assert 1 <= turns.count("takes") <= 2 * turns.count("learns")


def test_a_call_without_workers_returns_with_nothing():
    engine = async_engine(world())
    engine._pool.count = 0
    try:
        engine.begin(1)
        chunk = engine.advance(10, 0, ChunkLimits())
        assert (chunk.iterations, chunk.columns, chunk.is_healthy) == (0, {}, True)
    finally:
        engine.close()


WORKER = "import sys; from steppe import AsyncWorker; AsyncWorker(sys.argv[1], 'worlds:World').work()"


def test_the_progress_says_that_all_workers_are_gone(tmp_path):
    workers, killed, seen = [], [], []

    class Processes(Threads):
        def start(self, server, token):
            paths = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
            words = [sys.executable, "-c", WORKER, "{}:{}".format(*server.address)]
            workers.append(subprocess.Popen(words, env={"STEPPE_LEARNER_TOKEN": token, "PYTHONPATH": paths}))

    def show(progress):
        seen.append(progress.metrics)
        if progress.update and progress.metrics.get("workers") == 1 and not killed:
            workers[0].kill()
            killed.append(time.monotonic())

    def request():
        is_told = killed and (seen[-1]["workers"] == 0 or time.monotonic() > killed[0] + 30)
        return "stop" if is_told else None

    spec = world(total_timesteps=10**6)
    engine = async_engine(spec)
    engine._pool = Processes(engine._rules, 1, 1)
    try:
        TrainingLoop(spec, engine, tmp_path, request, show).run(None)
    finally:
        engine.close()
        for worker in workers:
            worker.kill()
            worker.wait(30)
    # A worker that is killed while its batch waits has not begun another one.
    assert (seen[-1]["workers"], seen[-1]["lost"] <= 1) == (0, True)
    assert "loss" in seen[-1]


def test_workers_join_and_leave_while_it_learns(tmp_path):
    engine = async_engine(world(num_workers=1, total_timesteps=10**6))
    crew = engine._pool

    def figures():
        return engine.advance(4, engine._timestep, ChunkLimits()).columns.get("workers", np.zeros(1))[-1]

    try:
        engine.begin(1)
        wait_until(lambda: figures() == 1, "the first works")
        crew.send_one(name="late")
        wait_until(lambda: figures() == 2, "the second has joined")
        members = engine._server.membership
        next(iter(engine._server._sessions)).stop()
        # The same worker reconnects, so nothing is lost.
        wait_until(lambda: figures() == 2 and connections(members) == 3, "it is back")
        assert (members.lost, members.next_number) == (0, 2)
    finally:
        engine.close()
    assert not crew.errors


def connections(members):
    return sum(member.connection for member in members._members.values())


def test_an_evaluation_by_the_loop_plays_here(tmp_path):
    spec = world(evaluation={"every": 1000, "episodes": 5}, asynchronous={"evaluation_share": 0.0})
    train_async(tmp_path, spec)
    lines = [line for line in read_metrics(tmp_path) if "evaluation_return" in line]
    assert len(lines) == 3
    assert lines[-1]["evaluation_return"] > 8.0


def test_a_checkpoint_of_another_run_mode_is_refused():
    engine = async_engine(world())
    try:
        with pytest.raises(CheckpointError, match="made in another run mode"):
            engine.restore({"host/returns": np.zeros(3)}, 1)
    finally:
        engine.close()


def test_closing_twice_and_before_the_beginning_is_fine():
    before = set(threading.enumerate())
    engine = async_engine(world())
    engine.close()
    engine.close()
    assert set(threading.enumerate()) <= before


def test_the_meter_measures_the_last_seconds(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = Meter()
    now[0] += 2.0
    meter.add(1.0, 30)
    assert meter.rates() == pytest.approx((0.5, 15.0))
    now[0] += 60.0
    assert meter.rates() == (0.0, 0.0)
