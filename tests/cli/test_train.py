from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import steppe as package
from steppe.experiments.run_folder.store import RunFolder
from steppe.records.checkpoints import list_checkpoints
from steppe.runners.engines import distributed


def test_train_needs_no_project(steppe: Any, here: Path, trained: Any) -> None:
    answer = steppe("train", "CartPole-v1", "--agent", "ppo", "-t", "1e3", "--set", "agent.discount=0.9")
    assert answer.code == 0
    ((spec, resume),) = trained
    assert (spec.name, spec.total_timesteps, spec.agent.settings["discount"], resume) == (
        "CartPole-v1-ppo-1",
        1000,
        0.9,
        False,
    )
    assert RunFolder(here / "steppe-runs" / "CartPole-v1-ppo-1").local_status().state == "completed"
    assert "steppe-runs/CartPole-v1-ppo-1/checkpoints/" in answer.out
    assert "steppe experiment show -e CartPole-v1-ppo-1" in answer.out


def test_each_run_without_a_name_is_a_new_one(steppe: Any, here: Path, trained: Any) -> None:
    for _ in range(2):
        steppe("train", "CartPole-v1", "-q")
    assert [spec.name for spec, _ in trained] == ["CartPole-v1-ppo-1", "CartPole-v1-ppo-2"]


def test_distributed_without_ray_is_refused_before_a_run_folder_is_made(
    steppe: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = distributed.find_spec
    monkeypatch.setattr(distributed, "find_spec", lambda name: None if name == "ray" else found(name))
    answer = steppe("train", "CartPole-v1", "-m", "distributed", "-w", "2")
    assert answer.code == 2
    assert 'pip install "steppe[cluster]"' in answer.err
    assert not (here / "steppe-runs").exists()


def test_updates_in_gymnasium_environments_are_whole_numbers(steppe: Any, here: Path) -> None:
    answer = steppe("train", "CartPole-v1", "-n", "mine", "-t", "600", "--set", "environment.backend=gymnasium", "-q")
    assert answer.code == 0, answer.err
    lines = [json.loads(line) for line in (here / "steppe-runs" / "mine" / "metrics.jsonl").read_text().splitlines()]
    updates = [line["update"] for line in lines if "update" in line]
    assert updates
    assert all(type(update) is int for update in updates)
    assert type(json.loads((here / "steppe-runs" / "mine" / "status.json").read_text())["update"]) is int


def test_a_run_with_a_name_is_not_overwritten(steppe: Any, here: Path, trained: Any) -> None:
    assert steppe("train", "CartPole-v1", "-n", "mine").code == 0
    assert "exists already" in steppe("train", "CartPole-v1", "-n", "mine").err
    assert steppe("train", "CartPole-v1", "-n", "mine", "--force").code == 0
    assert len(list((here / "steppe-runs" / "mine").glob("before-*"))) == 1


def test_train_inside_a_project_is_an_experiment_of_it(steppe: Any, project: Path, trained: Any) -> None:
    steppe("train", "-f", "cartpole_dqn", "-q")
    steppe("train", "grid_world", "-q")
    names = {folder.name for folder in (project / "experiments").iterdir()}
    assert names == {"CartPole-v1-dqn-1", "GridWorld-v0-ppo-1"}


def test_train_takes_ppo_where_neither_file_nor_flag_names_an_agent(steppe: Any, here: Path, trained: Any) -> None:
    (here / "mine.json").write_text('{"environment": "CartPole-v1", "total_timesteps": 50}')
    assert steppe("train", "-f", "mine.json", "-q").code == 0
    assert [(spec.name, spec.agent.type) for spec, _ in trained] == [("CartPole-v1-ppo-1", "ppo")]


def test_train_names_the_flag_for_what_a_file_leaves_out(steppe: Any, here: Path, trained: Any) -> None:
    (here / "my file.json").write_text('{"agent": "ppo"}')
    assert steppe("train", "-f", "my file.json").err == (
        'error: missing field "environment" in my file.json; write it there or give it with -E/--environment\n'
    )
    assert steppe("train", "-f", "my file.json", "-E", "CartPole-v1", "-q").code == 0


def test_the_api_trains_in_one_call(here: Path, trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = package.train("CartPole-v1", agent={"type": "vpg"}, total_timesteps=50, progress=False)
    assert (experiment.status.state, experiment.spec.agent.type, experiment.spec.seed is not None) == (
        "completed",
        "vpg",
        True,
    )
    assert experiment.folder == here / "steppe-runs" / "CartPole-v1-vpg-1"
    assert capsys.readouterr().out == ""


def test_the_api_opens_starts_and_resumes(here: Path, trained: Any) -> None:
    made = package.Experiment(environment="CartPole-v1", agent="random", total_timesteps=50, folder="runs/mine")
    assert made.status.state == "created"
    assert made.start().state == "completed"
    opened = package.Experiment.open("runs/mine")
    assert opened.name == "mine"
    assert repr(opened) == f"Experiment('{here}/runs/mine', completed)"
    with pytest.raises(package.errors.StateError, match="resume=True"):
        opened.start()


def test_a_field_that_does_not_exist_is_named(here: Path) -> None:
    with pytest.raises(package.errors.SpecError, match='unknown field "total_timestep"'):
        package.train("CartPole-v1", total_timestep=50)
    assert list(here.iterdir()) == []


def _wait_for(folder: RunFolder, *states: str) -> str:
    deadline = time.monotonic() + 120
    while not folder.exists or (state := folder.local_status().state) not in states:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return state


def test_a_real_detached_run_is_paused_resumed_and_stopped(steppe: Any, here: Path) -> None:
    folder = RunFolder(here / "steppe-runs" / "mine")
    answer = steppe("train", "CartPole-v1", "-A", "random", "-t", "1e10", "-e", "1e10", "-n", "mine", "--detach")
    assert answer.code == 0, answer.err
    assert "is training in process" in answer.out
    _wait_for(folder, "running")
    assert "is running already" in steppe("experiment", "start", "-e", "mine").err
    assert steppe("experiment", "pause", "-e", "mine").code == 0
    assert folder.local_status().state == "paused"
    paused_at = folder.local_status().timestep
    assert paused_at in list_checkpoints(folder.path)
    assert steppe("experiment", "resume", "-e", "mine", "--detach").code == 0
    _wait_for(folder, "running")
    assert steppe("experiment", "stop", "-e", "mine").code == 0
    assert folder.local_status().state == "stopped"
    assert folder.local_status().timestep >= paused_at


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "paused"), (signal.SIGTERM, "stopped")])
def test_a_real_run_saves_everything_on_a_signal(here: Path, number: signal.Signals, state: str) -> None:
    command = [sys.executable, "-m", "steppe", "train", "CartPole-v1", "-A", "random", "-t", "1e10", "-e", "1e10"]
    folder = RunFolder(here / "steppe-runs" / "CartPole-v1-random-1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(folder, "running")
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, folder.local_status().state, err) == (128 + number, state, "")
    assert f"is {state}" in out
    assert "steppe experiment resume -e CartPole-v1-random-1" in out
    assert folder.local_status().timestep in list_checkpoints(folder.path)


def test_everything_the_package_offers_is_there_and_importing_it_is_light() -> None:
    code = (
        "import sys, steppe; print([name for name in ('pydantic', 'numpy', 'jax') if name in sys.modules]); "
        "assert issubclass(steppe.errors.StateError, steppe.errors.SteppeError); "
        "print([name for name in dir(steppe) if not hasattr(steppe, name)], len(dir(steppe)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["[]", f"[] {len(package.__all__)}"]
