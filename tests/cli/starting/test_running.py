"""The commands that are suggested at the end of a run work."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from endpoints import save_policy

from steppe.cli.starting import running
from steppe.cli.starting.running import next_commands
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.serve import load_endpoint
from steppe.spec_files import load_experiment, read_environment, read_experiment
from steppe.specs.experiment import ExperimentSpec


def offered(folder: Path, environment: Any) -> list[str]:
    """The words after `steppe train` in the last command."""
    run = RunFolder(folder / "run")
    run.create(read_experiment({"name": "run", "environment": environment, "agent": "ppo"}))
    commands = next_commands(run, Status(state="completed"))
    trains = [shlex.split(command)[2:] for command in commands if command.startswith("steppe train ")]
    return trains[0] if trains else []


@pytest.mark.parametrize(
    "environment",
    [
        "CartPole-v1",
        {"type": "remote", "address": "127.0.0.1:5555", "timeout": 3},
        {"type": "remote", "addresses": ["a:1", "b:2"]},
        {"id": "CartPole-v1", "backend": "gymnasium", "settings": {"sutton_barto_reward": True}},
        {"id": "CartPole-v1", "settings": {"name": "12"}, "normalize_rewards": True},
        {"gym_id": "Pong-v0"},
    ],
)
def test_the_same_environment_is_offered_for_another_agent(tmp_path: Path, environment: Any) -> None:
    id, *rest = offered(tmp_path, environment)
    assert rest[-2:] == ["--agent", "vpg"]
    assert rest[:-2:2] == ["--set"] * (len(rest[:-2]) // 2)
    spec = load_experiment(None, {"name": "x", "environment": id, "agent": "vpg"}, rest[1:-2:2], tmp_path)
    assert spec.environment == read_environment(environment)


def test_a_command_that_is_too_long_to_read_is_not_offered(tmp_path: Path) -> None:
    assert offered(tmp_path, {"id": "CartPole-v1", "settings": {"text": "word " * 50}}) == []


@pytest.mark.parametrize("state", ["completed", "paused"])
def test_a_run_that_has_saved_a_policy_can_be_served_next(tmp_path: Path, state: Any) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    run = RunFolder(tmp_path / "steppe-runs" / "first")
    run.create(ExperimentSpec(name="first", environment="CartPole-v1", agent="ppo"))
    assert not any("serve" in command for command in next_commands(run, Status(state=state, timestep=100)))
    save_policy(run.path / "policy")
    assert not any("serve" in command for command in next_commands(run, Status(state=state)))  # nothing learned yet
    (command,) = (each for each in next_commands(run, Status(state=state, timestep=100)) if "serve" in each)
    assert command.startswith("steppe serve -e ")
    endpoint = load_endpoint(shlex.split(command)[-1], start=tmp_path)
    assert endpoint.models() == ("first",)


def test_the_size_of_large_checkpoints_is_shown(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints" / "64"
    saved.mkdir(parents=True)
    assert running._large_size(RunFolder(tmp_path)) == ""
    with (saved / "state.safetensors").open("wb") as file:
        file.truncate(1_240_000_000)
    assert running._large_size(RunFolder(tmp_path)) == " (1.2 GB)"
