"""Pods that work for a driver: a worker that hangs before it has joined, a Ray that cannot join, a missing driver."""

from __future__ import annotations

import sys

import pytest
from clocks import set_clock
from processes import wait_until

from steppe.platforms.kubernetes.pod import pool_client, roles
from steppe.runners.engines.asynchronous.wire.protocol import not_made_within
from steppe.specs.environment import EnvironmentSpec

STUCK = """
import ctypes

def make():
    ctypes.PyDLL(None).pause()  # as a simulator's own code may: no thread of Python gets to run
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Starts a worker with an environment of that module."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "learner").write_text("secret-of-the-learner")
    monkeypatch.setattr(roles, "TOKENS", str(tmp_path / "tokens"))
    # Nothing listens there, so a worker that has made its environment keeps looking for a learner.
    monkeypatch.setenv("STEPPE_POD_HEAD", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    begun = []

    def begin(module):
        (tmp_path / "own_world.py").write_text(module)
        environment = EnvironmentSpec.model_validate("own_world:make").model_dump(mode="json")
        plan = {"environment": environment, "num_envs": 1, "max_timesteps": None, "repeat_actions": 1}
        begun.append(pool_client.WorkerProcess({"certificate": None, **plan}))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()
        assert each.process.returncode is not None


def test_a_worker_that_hangs_while_it_makes_its_environment_is_stuck(worker):
    stuck = worker(STUCK)
    wait_until(lambda: stuck.is_stuck(0.5), "the worker is stuck", seconds=60)
    assert not stuck.is_stuck(3600.0)
    assert stuck.process.poll() is None


def test_a_worker_that_has_made_its_environment_is_not_stuck(worker):
    waiting = worker("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    wait_until(lambda: waiting.is_stuck(3600.0) or waiting._has_made, "the environment is made", seconds=60)
    assert not waiting.is_stuck(0.0)
    assert waiting.process.poll() is None


def test_the_learner_is_told_about_a_stuck_worker(worker, monkeypatch):
    heard = []
    monkeypatch.setattr(
        "steppe.runners.engines.asynchronous.worker.connection.decline",
        lambda door, *words: heard.append((door, words)),
    )
    pool_client._report_stuck({"certificate": None}, 300.0)
    ((door, words),) = heard
    assert (door.address, door.token) == ("127.0.0.1:8471", "secret-of-the-learner")
    assert words == ("fault", not_made_within(300.0))


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Runs a Pod of the pool; `answer` returns the driver's answer by the number of Rays that were started."""
    (tmp_path / "tokens").mkdir(exist_ok=True)
    for name in ("door", "ray"):
        (tmp_path / "tokens" / name).write_text("secret")
    monkeypatch.setattr(roles, "TOKENS", str(tmp_path / "tokens"))
    monkeypatch.setenv("STEPPE_POD_HEAD", "127.0.0.1")
    monkeypatch.setenv("STEPPE_POD_RUN_MODE", "distributed")
    monkeypatch.setattr(pool_client.signal, "signal", lambda *_: None)
    monkeypatch.setattr(pool_client, "is_listening", lambda *_: True)
    monkeypatch.setattr(pool_client, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(pool_client, "POLL_SECONDS", 0.01)
    begun = []

    def served(answer, ray="import sys; sys.exit(1)"):
        def command(role):
            begun.append(role)
            return [sys.executable, "-c", ray]

        monkeypatch.setattr(pool_client.DriverClient, "ask", lambda *_: answer(len(begun)))
        monkeypatch.setattr(pool_client, "_ray_command", command)
        return pool_client.serve("worker")

    return served


HERE, OVER = {"is_over": False, "session": "a"}, {"is_over": True, "session": "a"}
MISMATCH = """
import sys
print("Local node IP: 10.0.0.7")
print("Traceback (most recent call last):\\n  File \\"scripts.py\\", line 1")
print("RuntimeError: Version mismatch: The cluster was started with:\\n    Ray: 2.60.0\\n    Python: 3.11.2")
print("This process was started with:\\n    Ray: 2.61.0\\n    Python: 3.11.2")
sys.exit(1)
"""


def test_a_ray_that_cannot_join_ends_its_pod_with_its_error(serve, capfd):
    assert serve(lambda rays: HERE, ray=MISMATCH) == 1
    said = capfd.readouterr().out.strip().splitlines()
    assert said[-1] == (
        "error: its Ray cannot join the driver's: RuntimeError: Version mismatch: The cluster was started with: "
        "Ray: 2.60.0 Python: 3.11.2 This process was started with: Ray: 2.61.0 Python: 3.11.2"
    )
    assert said.count("Local node IP: 10.0.0.7") == pool_client.EARLY_DEATHS


def test_a_ray_that_has_run_for_a_while_is_restarted(serve, monkeypatch):
    monkeypatch.setattr(pool_client, "EARLY_SECONDS", 0.0)
    assert serve(lambda rays: OVER if rays > pool_client.EARLY_DEATHS else HERE) == 0


def test_a_silent_driver_is_waited_for_until_a_day_has_passed(serve, monkeypatch, capfd):
    now = [0.0]

    def sleep(seconds):
        now[0] += 600.0

    set_clock(monkeypatch, monotonic=lambda: now[0], sleep=sleep)
    assert serve(lambda rays: OVER if now[0] > 60_000.0 else None) == 0
    assert "the driver at 127.0.0.1:8470 has not answered for 1200 s\n" in capfd.readouterr().out
    # A restarted Pod would wait again, without end.
    assert serve(lambda rays: None) == 0
    assert capfd.readouterr().out.endswith("has not answered for a day: it is over\n")
