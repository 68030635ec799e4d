"""Runs with parameter servers and workers in other processes: results, and cleanup."""

from __future__ import annotations

import json
import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
from processes import wait_until
from ray_processes import descendants, named
from runs import TINY_PPO, experiment, train

from steppe.errors import EnvironmentFault, UserError
from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest
from steppe.runners.engines.asynchronous.learner import worker_pool as async_pool
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.distributed import gradient_worker_pool, make_engine
from steppe.runners.engines.distributed.messages import WorkReport
from steppe.runners.play.episodes import EpisodeRules
from steppe.specs.running.distributed import RaySpec

pytestmark = pytest.mark.usefixtures("a_ray")


def spec_of(agent=None, environment="CartPole-v1", **fields):
    common = {"run_mode": "distributed", "num_workers": 2, "num_parameter_servers": 2, "total_timesteps": 8_000}
    return experiment(environment, agent or TINY_PPO, **(common | fields))


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def actors():
    """The names of the running servers and workers of this test."""
    names = [named(pid) for pid, _ in descendants(os.getpid())]
    return [name for name in names if name.startswith(("ray::GradientWorker", "ray::ParameterServer"))]


@pytest.fixture
def together(monkeypatch):
    """No worker gets an order until all are ready; otherwise the first one could do all the work."""
    order = gradient_worker_pool.GradientWorkerPool.order

    def order_all(team, *words):
        if not team.awaited:
            order(team, *words)

    monkeypatch.setattr(gradient_worker_pool.GradientWorkerPool, "order", order_all)


@pytest.mark.learning
@pytest.mark.usefixtures("together")
def test_gradients_that_are_too_stale_are_dropped_and_counted(tmp_path):
    spec = spec_of(distributed={"max_staleness": 1}, total_timesteps=30_000, summary_frequency="1000t")
    outcome = train(tmp_path, spec)
    dropped = rows(tmp_path)[-1]["dropped"]
    assert dropped > 0
    assert outcome.update + dropped == outcome.timestep // 64 * 4


NOISY = """
import logging
import worlds

class Noisy(worlds.World):
    def reset(self, **options):
        print("a word from the environment")
        logging.getLogger("simulator").warning("a warning from the simulator")
        return super().reset(**options)

class Failing(worlds.World):
    def step(self, action):
        raise RuntimeError("the simulator is broken")
"""


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "noisy_worlds.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("noisy", "together")
def test_workers_in_other_processes_step_normalise_log_and_end(tmp_path, caplog):
    environment = {"id": "noisy_worlds:Noisy", "normalize_observations": True, "normalize_rewards": True}
    spec = spec_of(environment=environment, total_timesteps=4_000)
    with caplog.at_level(logging.INFO, "steppe"):
        outcome = train(tmp_path / "run", spec)
    wait_until(lambda: not actors(), "all actors are gone")
    assert outcome.state == "completed"
    assert outcome.mean_return > 4.0
    lines = {record.getMessage() for record in caplog.records}
    for worker in (0, 1):
        assert f"worker {worker}: a word from the environment" in lines
        assert f"worker {worker}: a warning from the simulator" in lines
    saved = load_latest(tmp_path / "run").arrays
    assert saved["servers/counters"][0] == outcome.update, "every push was applied, once, by every server"
    assert rows(tmp_path / "run")[-1]["workers"] == 2
    assert saved["servers/seen/observations/samples"] == outcome.timestep
    normalizer = load_policy(tmp_path / "run" / "policy").tensors["normalizer/mean"]
    np.testing.assert_allclose(normalizer, saved["servers/seen/observations/mean"], rtol=1e-5)


@pytest.mark.faults
@pytest.mark.usefixtures("noisy")
def test_an_environment_that_always_fails_ends_the_run_with_its_words(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_worker_pool, "SPARE_LOSSES", 0)
    with pytest.raises(EnvironmentFault, match="the simulator is broken"):
        train(tmp_path / "run", spec_of(environment="noisy_worlds:Failing", num_workers=1))


def test_a_begin_that_fails_leaves_no_actors_and_closes_again(monkeypatch):
    engine = make_engine(spec_of())

    def fail(*_):
        assert actors()
        raise ZeroDivisionError

    monkeypatch.setattr("steppe.runners.engines.distributed.gradient_worker_pool.GradientWorkerPool.fill", fail)
    with pytest.raises(ZeroDivisionError):
        engine.begin(1)
    wait_until(lambda: not actors(), "all actors are gone")
    engine.close()


def free_gpus():
    """The free GPUs according to Ray, which notices their use with a delay."""
    import ray

    return ray.available_resources().get("GPU", 0.0)


def test_a_third_of_a_gpu_puts_three_workers_on_one(monkeypatch):
    import ray

    class Idle:
        def __init__(self, number):
            self.number = number

        def begin(self):
            return WorkReport(self.number)

    monkeypatch.setattr(gradient_worker_pool, "GradientWorker", Idle)
    team = gradient_worker_pool.GradientWorkerPool(
        ray, RaySpec(gpus_per_worker=0.33, cpus_per_worker=0.1), lambda number: number, 60.0, 0
    )
    try:
        team.fill(4)
        wait_until(lambda: [*team.poll(0.05), team.working == 3][-1], "three work")
        wait_until(lambda: free_gpus() == pytest.approx(0.01), "that is known")
        assert not team.is_complete
        working = next(slot for slot in team._slots if slot.has_begun)
        ray.kill(working.actor)
        wait_until(lambda: [*team.poll(0.05), team.working == 4][-1], "the fourth has taken the place of one that went")
    finally:
        team.close()


def test_a_third_of_a_gpu_puts_three_workers_of_a_learner_on_one(monkeypatch):
    import ray

    class Idle:
        def arrive(self):
            return None

        def work(self, placement):
            return None

    monkeypatch.setattr(async_pool, "WorkerActor", Idle)
    spec = spec_of("dqn", run_mode="async", num_workers=4, ray={"gpus_per_worker": 0.33, "cpus_per_worker": 0.1})
    team = async_pool.RayWorkerPool(spec, EpisodeRules(spec.environment), 1)
    team.start(SimpleNamespace(membership=Membership(), address=("127.0.0.1", 7000)), None)
    try:

        def placed():
            return len(ray.wait([slot.arrival for slot in team._slots], num_returns=len(team._slots), timeout=0.2)[0])

        wait_until(lambda: placed() == 3, "three have a place")
        wait_until(lambda: free_gpus() == pytest.approx(0.01), "that is known")
        assert placed() == 3
    finally:
        for slot in team._slots:
            ray.kill(slot.actor)


def test_shares_that_put_too_many_workers_on_a_gpu_are_refused():
    engine = make_engine(spec_of(num_workers=4, ray={"gpus_per_worker": 0.25}))
    with pytest.raises(UserError, match="would put 4 workers on a GPU, and no more than 3 share one"):
        engine.begin(1)
    engine.close()


def test_an_address_without_an_answer_is_a_users_mistake(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    engine = make_engine(spec_of(platform="ray", ray={"address": "127.0.0.1:9"}))
    with pytest.raises(UserError, match=r"nobody answers at 127\.0\.0\.1:9"):
        engine.begin(1)
