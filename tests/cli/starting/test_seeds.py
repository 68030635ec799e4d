"""`--seeds`: several seeds side by side, with one table at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import counting_members
import pytest

import steppe as package
from steppe import runners
from steppe.display.seed_progress import SeedLines
from steppe.errors import UserError
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.experiments.seed_group import SeedGroup, SeedRun
from steppe.spec_files import load_experiment


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    counting_members.use(monkeypatch)
    monkeypatch.setattr(runners, "check", lambda spec, resumed=None: [])


def test_train_makes_a_group_and_ends_with_one_table(steppe: Any, counting: None, here: Path) -> None:
    answer = steppe("train", "CartPole-v1", "--seeds", "1,3", "-n", "walk", "-t", "30")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "walk: ppo on CartPole-v1, 2 seeds"
    table = lines[lines.index("walk: ppo on CartPole-v1, 2 seeds", 1) :]
    assert [row.split() for row in table[1:4]] == [
        ["SEED", "EXPERIMENT", "STATE", "SCORE", "TIMESTEPS", "TIME"],
        ["1", "walk-s1", "completed", "1.5", "10", "0", "s"],
        ["3", "walk-s3", "completed", "1.5", "30", "0", "s"],
    ]
    assert table[4] == "  mean 1.5, deviation 0, median 1.5, min 1.5, max 1.5"
    assert "of 2 of 2 seeds" in table[5]
    assert "  steppe experiment show walk-s1" in table[-1] or "show -e walk-s1" in table[-1]
    assert max(map(len, lines)) <= 80
    for seed in (1, 3):
        data = json.loads((here / "steppe-runs" / f"walk-s{seed}" / "experiment.json").read_text())
        assert (data["seed"], data["group"]) == (seed, "walk")


def test_a_failed_seed_is_reported_and_the_others_complete(steppe: Any, counting: None) -> None:
    answer = steppe("train", "CartPole-v1", "--seeds", "14,1", "-n", "walk")
    assert answer.code == 1
    assert "note: seed 14: the loss is NaN" in answer.out
    assert "of 1 of 2 seeds" in answer.out
    assert "walk-s14" in answer.out.splitlines()[-1]


def test_an_experiment_of_a_project_is_started_with_several_seeds(steppe: Any, counting: None, project: Path) -> None:
    assert steppe("experiment", "new", "-E", "CartPole-v1", "-n", "first").code == 0
    assert steppe("experiment", "start", "-e", "first", "--seeds", "2", "-q").out == ""
    assert steppe("experiment", "new", "-E", "CartPole-v1", "-n", "other", "--start", "--seeds", "2", "-q").code == 0
    states = {row["name"]: row["state"] for row in json.loads(steppe("experiment", "list", "--json").out)}
    members = ("first-s1", "first-s2", "other-s1", "other-s2")
    assert states == {"first": "created"} | dict.fromkeys(members, "completed")
    again = steppe("experiment", "start", "-e", "first", "--seeds", "2")
    assert again.code == 2
    assert '"first-s1" exists already' in again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "2", "--seed", "1"), "seed and --seeds are both given"),
        (("--seeds", "2", "--set", "seed=1"), "seed and --seeds are both given"),
        (("--seeds", "2", "--detach"), "leave out --detach, and to close the terminal meanwhile begin it with nohup"),
        (("--seeds", "0"), "wrong number of seeds 0"),
        (("--seeds", "1,1"), "the seed 1 is given twice"),
    ],
)
def test_contradicting_options_of_seeds_are_refused_before_anything_is_made(
    steppe: Any, counting: None, here: Path, words: tuple[str, ...], message: str
) -> None:
    answer = steppe("train", "CartPole-v1", *words)
    assert answer.code == 2
    assert message in answer.err
    assert not (here / "steppe-runs").exists()


def test_seeds_belong_to_a_start(steppe: Any, counting: None, project: Path) -> None:
    answer = steppe("experiment", "new", "-E", "CartPole-v1", "-n", "first", "--seeds", "2")
    assert answer.code == 2
    assert "give --start too" in answer.err
    assert steppe("experiment", "new", "-E", "CartPole-v1", "-n", "first").code == 0
    for words in (("--resume",), ("-c", "lab")):
        answer = steppe("experiment", "start", "-e", "first", "--seeds", "2", *words)
        assert answer.code == 2
        assert "--seeds makes new experiments" in answer.err


@pytest.mark.learning
def test_a_seed_of_a_group_learns_what_it_learns_alone(here: Path) -> None:
    fields: dict[str, Any] = {"total_timesteps": 512, "num_envs": 4, "video": False, "progress": False}
    agent = {"type": "ppo", "horizon": 16, "minibatches": 2}
    first, second = package.train("CartPole-v1", agent, folder=here / "walk", seeds=[5, 6], **fields)
    assert (first.name, second.name) == ("walk-s5", "walk-s6")
    alone = package.train("CartPole-v1", agent, seed=6, folder=here / "alone", **fields)
    assert second.status.mean_return == alone.status.mean_return
    assert first.status.mean_return != alone.status.mean_return
    assert second.policy().act([0.0] * 4) in (0, 1)


def test_in_python_too_a_seed_and_seeds_exclude_each_other(here: Path) -> None:
    with pytest.raises(UserError, match="seed and seeds are both given"):
        package.train("CartPole-v1", seeds=2, seed=1)
    with pytest.raises(UserError, match="on_progress is for one run"):
        package.train("CartPole-v1", seeds=2, on_progress=print)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="is an object of this process"):
        package.train(lambda: None, seeds=2)


def test_a_seed_without_an_episode_yet_has_no_return_in_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    young, old = (SeedRun(RunFolder(Path(f"walk-s{seed}")), seed) for seed in (1, 2))
    old.status = Status(state="running", timestep=2_000, mean_return=21.5)
    monkeypatch.setattr(SeedRun, "is_running", True)
    lines = SeedLines(
        SeedGroup(
            "walk", load_experiment(None, {"environment": "CartPole-v1", "name": "walk"}, [], Path()), [young, old]
        )
    )
    lines._next = 0.0
    lines.update(lines.group)
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "seed 1 at 0 timesteps; seed 2 at 2k timesteps with mean return 21.5"
    )
