"""Shell completion: in a real bash process; for zsh and fish, the answers that they ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from steppe import agents
from steppe.cli.app import app_for
from steppe.cli.input import completion
from steppe.envs import registry
from steppe.experiments import project as projects
from steppe.specs.loading import files

BIN = Path(sys.executable).parent


@pytest.fixture
def run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two experiments and a run outside of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steppe.json").write_text('{"name": "demo"}')
    for age, name in enumerate(("experiments/first", "experiments/fishing", "steppe-runs/loose")):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text("{}")
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "experiments" / "no-experiment").mkdir()
    (tmp_path / "configs" / "agents").mkdir(parents=True)
    (tmp_path / "configs" / "agents" / "ppo_careful.yaml").write_text("type: ppo")
    return tmp_path


def asked(shell: str, **variables: str) -> str:
    env = dict(os.environ) | {"_STEPPE_COMPLETE": f"complete_{shell}"} | variables
    words = [sys.executable, "-m", "steppe"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout


def test_experiments_are_completed_in_projects_and_outside(run_names: Path) -> None:
    assert completion.experiments("") == ["first", "fishing", "loose"]
    assert completion.experiments("fi") == ["first", "fishing"]


def test_nothing_is_completed_where_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (completion.experiments(""), completion.networks("")) == ([], [])


def test_agents_are_those_of_steppe_and_of_the_project(run_names: Path) -> None:
    assert completion.agents("ppo") == ["ppo", "ppo_careful"]


def test_its_lists_are_those_of_their_origins() -> None:
    from steppe.specs.describing.json_schema import KINDS
    from steppe.specs.experiment import ExperimentSpec

    fields = ExperimentSpec.model_fields
    assert set(completion.AGENTS) == set(agents.names())
    assert list(completion.COMPILED) == registry.compiled_ids()
    assert completion.PROJECT_FILES == (files.PROJECT_FILE, files.OLD_PROJECT_FILE)
    assert completion.LOOSE_RUNS == projects.LOOSE_RUNS
    assert completion.SPEC_FILE == projects.SPEC_FILE
    assert completion.SUFFIXES == files.SUFFIXES
    assert set(completion.RUN_MODES) == set(get_args(fields["run_mode"].annotation))
    assert set(completion.PLATFORMS) == set(get_args(fields["platform"].annotation))
    assert set(completion.KINDS) == set(KINDS)


def test_bash_completes_with_the_script_that_is_shown(run_names: Path) -> None:
    script = """
        source <(steppe --show-completion bash)
        COMP_WORDS=(steppe experiment show "") COMP_CWORD=3
        _steppe_completion steppe
        echo "${COMPREPLY[@]}"
        COMP_WORDS=(steppe train Cart) COMP_CWORD=2
        _steppe_completion steppe
        echo "${COMPREPLY[@]}"
        complete -p steppe
    """
    # Typer detects the shell among the parent processes; a test may have none.
    env = dict(os.environ) | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "first fishing loose",
        "CartPole-v0 CartPole-v1",
        "complete -o default -F _steppe_completion steppe",
    ]


@pytest.mark.parametrize("words", ["steppe experiment resume fi", "steppe serve -e fi", "steppe report fi"])
def test_zsh_is_answered_with_the_experiments(run_names: Path, words: str) -> None:
    assert asked("zsh", _TYPER_COMPLETE_ARGS=words).split() == ["_arguments", "'*:", ':(("first"', '"fishing"))\'']


def test_fish_is_answered_with_the_experiments(run_names: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "steppe evaluate fi", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert asked("fish", **words).split() == ["first", "fishing"]


@pytest.mark.parametrize("program", ["steppe", "tfcli"])
def test_fish_gets_one_line_for_each_command(run_names: Path, program: str) -> None:
    fish = {"_TYPER_COMPLETE_ARGS": f"{program} ", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "COLUMNS": "40"}
    code = f"import sys; sys.argv = ['{program}']; from steppe.cli import main; main([])"
    env = dict(os.environ) | {f"_{program.upper()}_COMPLETE": "complete_fish"} | fish
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    commands = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert set(commands) == set(get_command(app_for([])).commands)
    assert len(commands) == len(set(commands))


def test_completing_imports_nothing_heavy(run_names: Path) -> None:
    heavy = ("jax", "numpy", "gymnasium", "pydantic", "rich.table", "yaml")
    code = (
        "import sys; from steppe.cli import app; from steppe.cli.input import completion; app.app_for([]); "
        "completion.experiments(''); "
        f"completion.agents(''); completion.environments(''); print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command", ["show", "start", "resume", "pause", "stop", "download", "logs", "manifest", "delete", "report"]
)
def test_an_experiment_is_named_by_an_argument_or_an_option(steppe: Any, project: Path, command: str) -> None:
    words = ["report"] if command == "report" else ["experiment", command]
    by_argument, by_option = steppe(*words, "absent"), steppe(*words, "-e", "absent")
    assert by_argument == by_option == steppe(*words, "absent", "-e", "absent")
    assert (by_argument.code, 'no experiment "absent"' in by_argument.err) == (2, True)
    two = steppe(*words, "a", "-e", "b")
    assert (two.code, two.err) == (2, 'error: two experiments are named, "a" and "b"; leave one out\n')
    assert f"try: {' '.join(['steppe', *words])} first" in steppe(*words).err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["report", "-e", "a", "-e", "b"], "--experiment"),
        (["train", "CartPole-v1", "--seed", "1", "--seed", "2"], "--seed"),
        (["train", "CartPole-v1", "-A", "ppo", "--agent", "dqn"], "--agent"),
        (["serve", "-e", "a", "--port", "1", "--port", "2"], "--port"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(steppe: Any, here: Path, words: list[str], option: str) -> None:
    answer = steppe(*words)
    assert (answer.code, answer.err) == (2, f"error: {option} is given more than once; give it one value\n")


def test_a_flag_and_an_option_of_several_values_may_be_repeated(steppe: Any, trained: Any, here: Path) -> None:
    words = ["--set", "agent.discount=0.9", "--set", "agent.clip=0.1", "-q", "-q"]
    assert steppe("train", "CartPole-v1", *words).code == 0
    assert (trained[0][0].agent.settings["discount"], trained[0][0].agent.settings["clip"]) == (0.9, 0.1)
