from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from demonstrated import random_policy, steady_policy

from steppe.experiments.run_folder.store import RunFolder
from steppe.records.demonstrations import load
from steppe.runners.play import recording
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.spaces import Box, Discrete

GYMNASIUM = EnvironmentSpec(id="CartPole-v1", backend="gymnasium")


@pytest.fixture
def trained_folder(here: Path) -> RunFolder:
    """A run whose experiment cuts episodes at 30 timesteps."""
    folder = RunFolder(here / "steppe-runs" / "first")
    spec = ExperimentSpec(name="first", environment=GYMNASIUM, agent="dqn", max_timesteps_per_episode=30)
    folder.create(spec)
    steady_policy().save(folder.path / "policy")
    return folder


def test_an_experiments_policy_plays_in_its_environment_by_its_rules(
    steppe: Callable, here: Path, trained_folder: RunFolder
) -> None:
    answer = steppe("record", "-e", "first", "--episodes", "3")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        "recorded 3 episodes (90 timesteps) with mean return 30.0 in demonstrations.safetensors; "
        "learn from them with:\n"
        "  steppe train CartPole-v1 --agent dqfd --set agent.demonstrations=demonstrations.safetensors\n"
    )
    shown = load(here / "demonstrations.safetensors")
    assert (len(shown), shown.mean_return, shown.environment) == (90, 30.0, "CartPole-v1")


def test_a_policy_plays_where_it_was_trained_and_in_other_environments(steppe: Callable, here: Path) -> None:
    steady_policy().save(here / "steady")
    (here / "short.json").write_text('{"id": "CartPole-v1", "settings": {"max_episode_steps": 20}}')
    words = ("record", "--policy", "steady", "--episodes", "1", "--out")
    assert steppe(*words, "a/long.safetensors", "-q").out == ""
    assert len(load(here / "a" / "long.safetensors")) == 500
    answer = steppe(*words, "b c.safetensors", "-E", "short.json")
    assert answer.code == 0, answer.err
    assert "recorded 1 episode (20 timesteps)" in answer.out
    assert "--set agent.demonstrations='b c.safetensors'" in answer.out


def test_recorded_demonstrations_can_be_trained_from(steppe: Callable, here: Path, trained_folder: RunFolder) -> None:
    assert steppe("record", "-e", "first", "--episodes", "2", "--out", "good.safetensors").code == 0
    sets = ("pretraining_updates=5", "demonstrations=good.safetensors", "batch_size=8")
    words = [word for each in sets for word in ("--set", f"agent.{each}")]
    answer = steppe("train", "CartPole-v1", "-A", "dqfd", "-t", "64", "-n", "second", "--set", "video=false", *words)
    assert answer.code == 0, answer.err
    assert RunFolder(here / "steppe-runs" / "second").local_status().state == "completed"


def test_a_run_is_resumed_from_another_folder_with_the_same_demonstrations(
    steppe: Callable, here: Path, trained_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steppe("record", "-e", "first", "--episodes", "2", "--out", "good.safetensors").code == 0
    agent = {"type": "dqfd", "demonstrations": "good.safetensors", "pretraining_updates": 5, "batch_size": 8}
    (here / "second.json").write_text(json.dumps({"environment": "CartPole-v1", "agent": agent, "video": False}))
    answer = steppe("train", "-f", "second.json", "-t", "64")
    assert answer.code == 0, answer.err
    (folder,) = (path for path in (here / "steppe-runs").iterdir() if path.name != "first")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    # If it were used, the run would end: it holds no demonstrations.
    (elsewhere / "good.safetensors").write_text("a namesake")
    monkeypatch.chdir(elsewhere)
    answer = steppe("experiment", "resume", "-e", str(folder), "--set", "total_timesteps=128")
    assert answer.code == 0, answer.err
    status = RunFolder(folder).local_status()
    assert (status.state, status.timestep) == ("completed", 128)


def test_episodes_that_are_too_few_are_said_to_be(
    steppe: Callable, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "TRIES", 1)
    random_policy(Box((4,)), Discrete(2), "CartPole-v1").save(here / "random")
    words = ("record", "--policy", "random", "--episodes", "12", "--min-return")
    answer = steppe(*words, "20")
    assert answer.code == 0, answer.err
    kept = int(load(here / "demonstrations.safetensors").ended.sum())
    assert 0 < kept < 12
    assert f"note: only {kept} of 12 episodes had a return of at least 20; 12 were asked for\n" in answer.out
    answer = steppe(*words, "501", "--out", "other")
    assert answer.code == 2
    assert answer.err.startswith("error: none of 12 episodes had a return of at least 501")
    assert not (here / "other").exists()


def test_drawn_actions_differ_from_the_best_ones(steppe: Callable, here: Path) -> None:
    steady_policy(epsilon=0.5).save(here / "unsteady")
    for name, words in (("best", ()), ("drawn", ("--stochastic",)), ("again", ("--stochastic",))):
        assert steppe("record", "--policy", "unsteady", "--episodes", "1", "--out", name, "-q", *words).code == 0
    best, drawn, again = (load(here / name).arrays["actions"] for name in ("best", "drawn", "again"))
    np.testing.assert_array_equal(drawn, again)
    assert drawn[:20].tolist() != best[:20].tolist()


def test_continuous_actions_are_recorded_without_a_next_command(steppe: Callable, here: Path) -> None:
    random_policy(Box((3,)), Box((1,), (-2.0,), (2.0,)), "Pendulum-v1").save(here / "random")
    answer = steppe("record", "--policy", "random", "--episodes", "1")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("recorded 1 episode (200 timesteps) with mean return -")
    assert answer.out.endswith(" in demonstrations.safetensors\n")


def test_a_file_is_not_written_over_without_being_asked(steppe: Callable, here: Path) -> None:
    steady_policy().save(here / "steady")
    (here / "there").write_text("mine")
    words = ("record", "--policy", "steady", "--episodes", "1", "--out", "there")
    answer = steppe(*words)
    assert (answer.code, answer.err) == (
        2,
        "error: there exists already; choose another --out, or use --force to write over it\n",
    )
    assert (here / "there").read_text() == "mine"
    assert steppe(*words, "--force").code == 0
    assert len(load(here / "there")) == 500


def test_ctrl_c_writes_nothing(steppe: Callable, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    steady_policy().save(here / "steady")
    monkeypatch.setattr(recording, "record", interrupted)
    answer = steppe("record", "--policy", "steady")
    assert answer.code == 130
    assert answer.err == "error: recording was ended by Ctrl-C; nothing was written\n"
    assert not (here / "demonstrations.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give one policy to record: an experiment's NAME or --policy FOLDER"),
        (("-e", "first", "--policy", "steady"), "give one policy to record"),
        (("-e", "nowhere"), 'no experiment "nowhere"'),
        (("--policy", "nowhere"), "there is no policy in nowhere"),
        (("--policy", "unplaced"), "does not say where it was trained; give an --environment"),
        (("--policy", "steady", "-E", "CartPoll-v1"), 'unknown environment "CartPoll-v1"'),
        (("--policy", "steady", "-E", "Acrobot-v1"), "whose observations are not those of Acrobot-v1"),
        (("--policy", "steady", "--episodes", "0"), "--episodes"),
        (("--policy", "steady", "--seed", "-1"), "--seed"),
        (("--policy", "steady", "--out", "steady"), "steady is a folder; give --out a file"),
        (("--policy", "steady", "--out", "x.npz"), "call the file --out x.safetensors"),
    ],
)
def test_a_mistake_is_one_sentence(steppe: Callable, here: Path, words: tuple, sentence: str) -> None:
    steady_policy().save(here / "steady")
    random_policy(Box((4,)), Discrete(2)).save(here / "unplaced")
    answer = steppe("record", *words)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert sentence in answer.err
    assert not (here / "demonstrations.safetensors").exists()


def test_a_missing_policy_is_reported_before_an_existing_file(steppe: Callable, here: Path) -> None:
    (here / "demonstrations.safetensors").write_text("mine")
    assert "give one policy to record" in steppe("record").err
    assert 'no experiment "nowhere"' in steppe("record", "-e", "nowhere").err
