"""A mistake at the command line gives one full sentence and exit code 2, and leaves no files behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import Steppe

NAME_RULE = (
    'a name is made of letters, digits, ".", "_" and "-", does not start with "." or "-", '
    'and has no ".." and at most 100 characters'
)


@pytest.fixture
def configs(steppe: Steppe) -> Path:
    """The project's folder of experiment files."""
    folder = steppe.folder / "configs" / "experiments"
    folder.mkdir(parents=True)
    _write(folder / "cartpole.json")
    return folder


def test_the_error_about_an_unknown_field_suggests_the_nearest_one(steppe: Steppe, configs: Path) -> None:
    _write(configs / "mine.json", total_timestep=1000)
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "mine"],
        'unknown field "total_timestep" in configs/experiments/mine.json at total_timestep; '
        'did you mean "total_timesteps"?',
    )


def test_the_error_about_a_wrong_type_names_the_field(steppe: Steppe, configs: Path) -> None:
    _write(configs / "mine.json", num_envs="many")
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "mine"],
        'wrong value "many" in configs/experiments/mine.json at num_envs; it must be a whole number',
    )


def test_the_error_about_an_unknown_agent_suggests_the_nearest_one(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["train", "CartPole-v1", "-A", "pppo"],
        'unknown agent "pppo" in --agent; did you mean "ppo"? ("steppe agents" lists them)',
    )


def test_the_error_about_an_unknown_layer_suggests_the_nearest_one(steppe: Steppe, configs: Path) -> None:
    _write(configs / "mine.json", network=[{"type": "dense", "size": 8}, {"type": "dens", "size": 8}])
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "mine"],
        'unknown layer "dens" in configs/experiments/mine.json at network[1].type; did you mean "dense"?',
    )


def test_the_error_about_an_unknown_environment_suggests_the_nearest_one(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["train", "CartPol-v1"],
        'unknown environment "CartPol-v1", which is neither a gymnasium id nor "module:callable"; '
        'did you mean "CartPole-v1"?',
    )


def test_the_error_about_a_missing_module_says_where_it_may_be(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["train", "nowhere:Make"],
        'environment "nowhere:Make" names the module "nowhere", which is not there; write module:callable, '
        f"with the module in {steppe.folder} or installed",
    )


def test_the_error_about_a_missing_file_names_the_searched_folders(steppe: Steppe, configs: Path) -> None:
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "cartpol"],
        'no experiment "cartpol": looked for cartpol.json (or .yaml, .yml, .toml) in . and configs/experiments; '
        'did you mean "cartpole"?',
    )


def test_the_error_about_broken_json_names_line_and_column(steppe: Steppe, configs: Path) -> None:
    (configs / "mine.json").write_text('{\n  "environment": "CartPole-v1"\n  "agent": "ppo"\n}\n')
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "mine"],
        "broken JSON in configs/experiments/mine.json at line 3, column 3: a comma is missing before this: "
        '"agent": "ppo"',
    )


def test_dqn_refuses_continuous_actions(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["train", "Pendulum-v1", "-A", "dqn"],
        'agent "dqn" needs discrete actions, but Pendulum-v1 has continuous actions; use "sac", "td3" or "ppo"',
    )


@pytest.mark.parametrize("name", ["a/b", "..", "../up"])
def test_a_name_that_cannot_be_a_folder_name_is_refused(steppe: Steppe, configs: Path, name: str) -> None:
    assert_refused(
        steppe,
        ["experiment", "new", "-f", "cartpole", f"--name={name}"],
        f'wrong value "{name}" in --name; {NAME_RULE}',
    )
    assert {entry.name for entry in steppe.folder.parent.iterdir()} == {"project", "outputs"}


def test_a_path_without_an_experiment_is_refused(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["experiment", "start", "-e", "../up"],
        f"no experiment in {steppe.folder.parent / 'up'} (it has no experiment.json)",
    )


def test_the_error_about_an_unknown_path_in_set_suggests_the_nearest_field(steppe: Steppe) -> None:
    assert_refused(
        steppe,
        ["train", "CartPole-v1", "--set", "agent.discuont=0.9"],
        'unknown field "discuont" in --set at agent.discuont; did you mean "discount"?',
    )


def test_an_experiment_that_was_never_started_cannot_be_resumed(steppe: Steppe, configs: Path) -> None:
    assert steppe("experiment", "new", "-f", "cartpole", "-n", "first", "-q").code == 0
    answer = steppe("experiment", "start", "-e", "first", "--resume")
    assert (answer.code, answer.out, answer.err) == (
        2,
        "",
        'error: experiment "first" has not been started yet, so there is nothing to resume; '
        "start it with: steppe experiment start -e first\n",
    )
    answer = steppe("experiment", "start", "-e", "first", "--set", "agent.discuont=0.9")
    assert (answer.code, answer.err) == (
        2,
        'error: unknown field "discuont" in --set at agent.discuont; did you mean "discount"?\n',
    )
    assert steppe.run("first").state == "created"


def assert_refused(steppe: Steppe, words: list[str], sentence: str) -> None:
    """The command prints exactly this sentence, exits with code 2 and makes no run folder."""
    answer = steppe(*words)
    assert (answer.code, answer.out, answer.err) == (2, "", f"error: {sentence}\n")
    assert not (steppe.folder / "experiments").exists()


def _write(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({"environment": "CartPole-v1", "agent": "ppo"} | fields))
