"""The program of a Pod, without a cluster: it starts, resumes, and recognises the end of a start."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import set_clock
from processes import wait_until

from steppe.experiments.process import pod_run
from steppe.experiments.process.pod_run import ELSEWHERE, FAILED_FOR_GOOD, OVER
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder
from steppe.spec_files import load_experiment

ENDLESS = 1_000_000_000


@pytest.fixture
def pod(tmp_path: Path):
    """Runs a Pod's training with the fields of an experiment; returns the exit code."""
    folder = RunFolder(tmp_path / "results" / "x")
    file = tmp_path / "experiment.json"

    def write(**fields):
        given = {"name": "x", "environment": "CartPole-v1", "total_timesteps": 2000, "seed": 1, "video": False} | fields
        file.write_text(load_experiment(None, given, [], tmp_path, options=False).model_dump_json())

    def words(generation="1", start="1"):
        return [str(folder.path), "--spec", str(file), "--generation", generation, "--start", start]

    def run(generation="1", start="1", more=(), **fields):
        write(**fields)
        return pod_run.main([*words(generation, start), *more])

    def begin(start="1", **fields):
        write(**fields)
        return subprocess.Popen([sys.executable, "-m", "steppe.experiments.process.pod_run", *words(start=start)])

    run.folder, run.begin = folder, begin
    return run


def test_it_is_begun_once_and_over_for_every_pod_of_the_same_start(pod):
    assert pod() == OVER
    first = pod.folder.read_status()
    assert first.state == "completed"
    assert pod() == OVER
    assert pod.folder.read_status() == first


def test_another_start_goes_on_where_the_last_one_ended(pod):
    pod()
    assert pod(start="2", total_timesteps=6000) == OVER
    assert pod.folder.read_status().timestep >= 6000
    assert "resuming" in pod.folder.log.read_text()


def test_another_generation_begins_anew_and_keeps_the_old_results_beside(pod):
    pod()
    assert pod(generation="2", start="2") == OVER
    assert list(pod.folder.path.glob("before-*/status.json"))
    assert "resuming" not in pod.folder.log.read_text()


def test_a_failure_is_one_for_good(pod):
    assert pod(environment="no_such_module:make") == FAILED_FOR_GOOD
    assert pod.folder.read_status().state == "failed"
    assert pod(environment="no_such_module:make") == FAILED_FOR_GOOD


def test_a_failure_that_only_the_pod_knows_of_is_noted(pod):
    pod()
    assert pod(start="2", more=["--failed", "its Pod ran out of memory"]) == FAILED_FOR_GOOD
    status = pod.folder.read_status()
    assert (status.state, status.reason) == ("failed", "its Pod ran out of memory")


def test_a_pod_that_is_asked_to_end_hands_over(pod):
    process = pod.begin(total_timesteps=ENDLESS)
    wait_until(lambda: pod.folder.exists and pod.folder.read_status().timestep > 0, "it to train", seconds=120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    left = pod.folder.read_status()
    assert left.state == "paused"
    assert "exit_code" not in json.loads((pod.folder.path / ".pod.json").read_text())
    # The next Pod of the same start resumes.
    assert pod(total_timesteps=left.timestep + 2000) == OVER
    assert pod.folder.read_status().timestep >= left.timestep + 2000


@pytest.mark.parametrize(("action", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_requested_end_is_final_even_if_the_pod_gets_a_signal(pod, action, state):
    process = pod.begin(total_timesteps=ENDLESS)
    wait_until(lambda: pod.folder.exists and pod.folder.read_status().timestep > 0, "it to train", seconds=120)
    # Held, so that it gets both at once.
    process.send_signal(signal.SIGSTOP)
    pod.folder.ask(action)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == OVER
    assert pod.folder.read_status().state == state
    assert json.loads((pod.folder.path / ".pod.json").read_text())["exit_code"] == OVER


def test_a_pod_that_dies_again_and_again_without_getting_further_has_failed(pod):
    for _ in range(pod_run.MOST_DEATHS + 1):
        process = pod.begin(total_timesteps=ENDLESS)
        wait_until(lambda pid=process.pid: is_training(pod.folder, pid), "it to train", seconds=120)
        process.kill()
        process.wait()
    assert pod(total_timesteps=ENDLESS) == FAILED_FOR_GOOD
    assert "without a new checkpoint" in pod.folder.read_status().reason


def test_a_pod_waits_for_one_that_is_paused_and_still_writes_its_report(pod):
    pod()
    pod.folder.write_status(dataclasses.replace(pod.folder.read_status(), state="paused"))
    held = locks.acquire(pod.folder.path)
    threading.Timer(0.7, locks.release, [held]).start()
    assert pod(start="2", total_timesteps=6000) == OVER
    assert pod.folder.read_status().timestep >= 6000


def test_a_pod_that_has_waited_heeds_how_the_other_one_ended(pod):
    pod()
    ended = pod.folder.read_status()
    held = locks.acquire(pod.folder.path)

    def end() -> None:
        note = {"generation": "1", "start": "2", "exit_code": FAILED_FOR_GOOD}
        (pod.folder.path / ".pod.json").write_text(json.dumps(note))
        locks.release(held)

    threading.Timer(0.7, end).start()
    assert pod(start="2", total_timesteps=6000) == FAILED_FOR_GOOD
    assert pod.folder.read_status() == ended


@pytest.mark.parametrize("more", [(), ("--failed", "its Pod ran out of memory")])
def test_a_pod_leaves_one_alone_that_lives_whatever_its_clock_says(pod, hasty, monkeypatch, more):
    # On a busy machine the other one may be silent for a second or two.
    monkeypatch.setattr(pod_run, "SILENT_SECONDS", 5.0)
    monkeypatch.setattr(pod_run, "MOST_WAITING", 0.3)
    pod()
    note = (pod.folder.path / ".pod.json").read_text()
    with other_pod(pod.folder, clock=-300.0):
        assert pod(start="2", total_timesteps=6000, more=more) == ELSEWHERE
        status = pod.folder.read_status()
    assert (status.state, status.host, status.reason) == ("running", "another-pod", "")
    assert (pod.folder.path / ".pod.json").read_text() == note


def test_a_pod_takes_over_from_one_that_is_silent_whatever_its_clock_says(pod, hasty):
    pod()
    with other_pod(pod.folder, clock=300.0):
        pass
    assert pod(start="2", total_timesteps=6000) == OVER
    assert pod.folder.read_status().timestep >= 6000


def test_a_pod_does_not_wait_for_the_owner_of_a_folder_from_object_storage(pod, monkeypatch):
    pod()
    with other_pod(pod.folder, clock=0.0):
        pass
    # The only file that is never stored.
    (pod.folder.path / ".lock").unlink()
    set_clock(monkeypatch, sleep=lambda seconds: pytest.fail("it waits"))
    assert pod(start="2", total_timesteps=6000) == OVER


@pytest.fixture
def hasty(monkeypatch):
    """Shortens the time that Pods wait for each other."""
    monkeypatch.setattr(pod_run, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(pod_run, "LOOK_SECONDS", 0.05)


@contextlib.contextmanager
def other_pod(folder: RunFolder, clock: float) -> Iterator[None]:
    """A Pod on another node, whose clock is off by `clock` seconds; it lives as long as the block."""
    over = threading.Event()

    def beat() -> None:
        alive = {"state": "running", "host": "another-pod", "heartbeat": time.time() + clock, "reason": ""}
        folder.write_status(dataclasses.replace(folder.read_status(), **alive))

    def live() -> None:
        while not over.wait(0.02):
            beat()

    beat()
    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_training(folder: RunFolder, pid: int) -> bool:
    status = folder.read_status()
    return (status.state, status.pid) == ("running", pid)
