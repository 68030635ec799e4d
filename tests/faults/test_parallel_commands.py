"""Parallel runs obey pause, resume, stop and Ctrl-C, detached ones too, and leave no processes behind."""

from __future__ import annotations

import json
import signal

import pytest
from processes import ENDLESS, Run, Steppe, wait_until
from ray_processes import alive, descendants

from steppe.records.checkpoints import load_latest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

DQN = (
    *("CartPole-v1", "-A", "dqn", "--num-envs", "1", "--seed", "1", "--set", "video=false", "-t", "1e9"),
    *("--saver-frequency", "2000t", "--set", "agent.memory.capacity=5000"),
)
RUNS = {
    "multi-threaded": (*ENDLESS, "-m", "multi-threaded", "-w", "2"),
    "distributed": (*ENDLESS, "-m", "distributed", "-w", "2", "-p", "2"),
    "async": (*DQN, "-m", "async", "-w", "2"),
}


@pytest.mark.parametrize("mode", RUNS)
def test_a_detached_parallel_run_is_paused_resumed_and_stopped(steppe: Steppe, mode: str) -> None:
    run = steppe.run("many")
    answer = steppe("train", *RUNS[mode], "-n", "many", "--detach")
    assert answer.code == 0, answer.err
    wait_until(lambda: run.has_saved_since(0), "it has saved")
    wait_until(lambda: works_with(run, 2), "both workers are at work")
    started = descendants(run.status["pid"])

    paused = steppe("experiment", "pause", "-e", "many")
    at = run.status["timestep"]
    assert (paused.code, run.state, load_latest(run.path).timestep) == (0, "paused", at), paused.err
    wait_until(lambda: not alive(started), "all its processes have ended")

    assert steppe("experiment", "resume", "-e", "many", "--detach").code == 0
    wait_until(lambda: run.has_saved_since(at), "it has trained on")
    started = descendants(run.status["pid"])
    stopped = steppe("experiment", "stop", "-e", "many")
    assert (stopped.code, run.state) == (0, "stopped"), stopped.err
    assert load_latest(run.path).timestep == run.status["timestep"] > at
    wait_until(lambda: not alive(started), "all its processes have ended")


@pytest.mark.parametrize("mode", RUNS)
def test_ctrl_c_pauses_a_parallel_run(steppe: Steppe, mode: str) -> None:
    run = steppe.run("many")
    command = steppe.launch("train", *RUNS[mode], "-n", "many")
    wait_until(lambda: run.is_trained_by(command) and run.has_saved_since(0), "it trains and has saved")
    started = descendants(run.status["pid"])
    command.send_to_group(signal.SIGINT)
    answer = command.answer()
    assert (answer.code, answer.err) == (130, "")
    assert run.state == "paused"
    assert load_latest(run.path).timestep == run.status["timestep"] > 0
    wait_until(lambda: not alive(started), "all its processes have ended")


def works_with(run: Run, workers: int) -> bool:
    """Whether the run's metrics have reported so many workers."""
    complete = (run.path / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()
    return any(json.loads(line).get("workers") == workers for line in complete)
