from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from steppe.cli import main
from steppe.cli.app import app_for
from steppe.errors import SteppeError
from steppe.experiments import project as project_module


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], 'unknown command "trian"; did you mean "train"?'),
        (["experiment", "strat"], 'unknown command "strat"; did you mean "start"?'),
        (["experiment", "evaluate"], 'unknown command "evaluate"; did you mean "steppe evaluate"?'),
        (["play", "CartPole-v1"], 'unexpected argument "CartPole-v1" ("steppe play --help" lists what there is)'),
        (["train", "--agnet", "ppo"], 'unknown option "--agnet"; did you mean "--agent"?'),
        (["experiment", "start"], "no experiment is named; try: steppe experiment start first"),
        (
            ["experiment", "start", "-e"],
            "option '-e' requires an argument (\"steppe experiment start --help\" lists what there is)",
        ),
        (["record", "x", "--episodes", "-5"], "invalid value for '--episodes': it must be at least 1"),
        (["serve", "x", "--port", "99999"], "invalid value for '--port': it must be at most 65535"),
        (["experiment", "pause", "x", "--timeout", "-1"], "invalid value for '--timeout': it must be at least 0"),
        (["train", "CartPole-v1", "--set", "agent.lr=0.1"], 'at agent.lr; did you mean "learning_rate"?'),
        (["train", "CartPole-v1", "--set", "learning_rate=0.1"], 'did you mean "agent.learning_rate"?'),
        (["train", "CartPole-v1", "--agent", "PPO"], 'unknown agent "PPO" in --agent; did you mean "ppo"?'),
        (["schema", "agnt"], 'unknown kind of spec "agnt"; did you mean "agent"?'),
        (["experiment", "list"], '"steppe init" makes a project'),
        (["train"], "no environment is given; try: steppe train CartPole-v1"),
        (["train", "CartPole-v1", "-E", "Pendulum-v1"], "two environments are given"),
        (["train", "CartPole-v1", "-t", "abc"], 'wrong value "abc" in --total-timesteps'),
        (["train", "CartPole-v1", "-n", "../up"], 'wrong value "../up" in --name'),
        (
            ["train", "CartPole-v1", "--platform", "kubernetes"],
            'platform "kubernetes" needs a cluster; describe one (-C)',
        ),
        (["train", "CartPole-v1", "-m", "async", "--address", "far:6379"], "give that (--platform ray)"),
        (["train", "CartPole-v1", "-m", "async", "--platform", "ray"], "(--address host:port)"),
        (["train", "CartPole-v1", "--platform", "ray", "--address", "far:6379"], 'run mode "single" is one process'),
        (["train", "CartPole-v1", "-m", "async", "--platform", "ray", "--address", "far"], '"10.0.0.1:6379"'),
        (["agents", "pppo"], 'error: unknown agent "pppo"; did you mean "ppo"? ("steppe agents" lists them)'),
        (["train", "CartPole-v1", "--stop-at-return", "null"], 'wrong value "null" in --stop-at-return'),
        (
            ["train", "CartPole-v1", "--seed", "1,2,3"],
            'wrong value "1,2,3" in --seed, which takes one seed; for several give --seeds 1,2,3',
        ),
        (["train", "CartPole-v1", "--seed", "true"], 'wrong value "true" in --seed; it must be a whole number'),
        (["policy", "export", "nowhere"], 'no experiment "nowhere"'),
        (["cluster", "creat"], 'unknown command "creat"; did you mean "create"?'),
        (["cluster", "create", "--provider", "kind"], "the cluster has no name; give one with -n"),
        (["cluster", "create", "-n", "a", "--provider", "gcp"], 'unknown value "gcp" in --provider; it must be one of'),
        (["cluster", "create", "-n", "a", "--provider", "kind", "-s", "0"], "wrong value 0 in --num-nodes"),
        (["cluster", "delete"], "say which cluster to delete: -c NAME, or --all"),
        (["cluster", "delete", "--all", "--forget"], "--forget is for one cluster; name it with -c"),
        (["cluster", "check", "-c", "absent"], 'no cluster "absent"'),
        (["image", "push", "steppe:1", "--program", "doker"], 'unknown program "doker"'),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    steppe: Any, here: Path, words: list[str], sentence: str
) -> None:
    answer = steppe(*words)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert list(here.iterdir()) == []


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes every command that looks for experiments raise."""

    def break_with(error: Exception) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(project_module, "known_stores", fail)

    return break_with


def test_an_unexpected_error_asks_for_debug(steppe: Any, broken: Any) -> None:
    broken(ZeroDivisionError("division by zero"))
    answer = steppe("experiment", "list")
    assert answer.code == 1
    assert answer.err == (
        "error: something unexpected went wrong (ZeroDivisionError: division by zero); "
        "run it again with --debug to see where\n"
    )


@pytest.mark.parametrize("words", [["--debug", "experiment", "list"], ["experiment", "list", "--debug"]])
def test_debug_anywhere_shows_the_traceback(steppe: Any, broken: Any, words: list[str]) -> None:
    broken(SteppeError("a known one"))
    answer = steppe(*words)
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert answer.err.endswith("error: a known one\n")


def test_debug_can_come_from_the_environment(steppe: Any, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(SteppeError("a known one"))
    monkeypatch.setenv("STEPPE_DEBUG", "1")
    assert "Traceback" in steppe("experiment", "list").err


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["train", "-h"], ["experiment", "new", "--help"]])
def test_help_is_given_for_everything(steppe: Any, words: list[str]) -> None:
    answer = steppe(*words)
    assert answer.code == 0
    assert "Usage: steppe" in answer.out


def test_help_shows_the_whole_first_sentence_of_each_command(steppe: Any) -> None:
    for words in ([], ["experiment"], ["serve"], ["cluster"]):
        text = steppe(*words, "--help").out
        assert "Commands:" in text
        assert "..." not in text.partition("Commands:")[2]


def test_help_names_fields_that_the_command_takes(steppe: Any) -> None:
    assert "total_timesteps=2e6" in steppe("experiment", "resume", "--help").out
    assert "location=" in steppe("cluster", "create", "--help").out
    assert "Train on this cluster" not in steppe("experiment", "manifest", "--help").out


def _pages(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that has a help page."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _pages(inner, (*words, name))


def test_help_breaks_no_word_and_no_command(steppe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in _pages(get_command(app_for([]))):
        usage, *lines = steppe(*words, "--help").out.splitlines()
        assert usage.startswith("Usage:")
        assert [line for line in lines if line.endswith(("-", "..."))] == []
        examples = [number for number, line in enumerate(lines) if line.startswith("  For example: ")]
        assert [lines[number + 1] for number in examples] == [""] * len(examples)


def test_a_letter_with_two_meanings_is_explained(steppe: Any) -> None:
    for words in (("train",), ("experiment", "new")):
        assert "in other commands -e names an experiment" in " ".join(steppe(*words, "--help").out.split())
    assert "in other commands -f names a file" in " ".join(steppe("init", "--help").out.split())
    answer = steppe("train", "CartPole-v1", "-e", "first")
    assert (answer.code, answer.err) == (
        2,
        'error: wrong value "first" in --episodes; it must be a whole number (-e is short for --episodes here; in '
        "other commands it names an experiment)\n",
    )


def test_a_folder_is_no_file(steppe: Any, project: Path) -> None:
    (project / "dir.json").mkdir()
    answer = steppe("experiment", "new", "-f", "dir.json")
    assert (answer.code, "dir.json" in answer.err, "is a folder, no experiment file" in answer.err) == (2, True, True)


def test_no_command_at_all_shows_the_help(steppe: Any) -> None:
    assert "Usage: steppe" in steppe().err


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_that_of_the_package(steppe: Any, words: list[str]) -> None:
    import steppe as package

    assert steppe(*words).out == f"steppe {package.__version__}\n"


def test_every_flag_of_the_old_client_is_there(steppe: Any) -> None:
    text = steppe("experiment", "new", "--help").out
    flags = (
        "-f, --file|-n, --name|-A, --agent|-M, --network|-E, --environment|-C, --cluster|-e, --episodes|"
        "-t, --total-timesteps|--max-timesteps-per-episode|-d, --deterministic|-m, --run-mode|-w, --num-workers|"
        "-p, --num-parameter-servers|--repeat-actions|--saver-frequency|--summary-frequency|--seed|--set|-s, --start"
    )
    for flag in flags.split("|"):
        assert f"  {flag} " in text


HEAVY = ("jax", "flax", "optax", "numpy", "gymnasium", "tensorboardX", "onnx", "PIL", "pydantic", "rich")
HEAVY += ("ray", "kr8s", "httpx", "boto3", "google.auth", "yaml")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from steppe.cli import main; main(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"


def test_list_imports_nothing_heavy(project: Path) -> None:
    heavy = set(HEAVY) - {"pydantic", "rich"}
    code = (
        "import sys; from steppe.cli import main; main(['experiment', 'list']); "
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"


def test_only_the_command_that_is_called_is_put_together() -> None:
    assert list(get_command(app_for(["train", "CartPole-v1"])).commands) == ["train"]
    assert list(get_command(app_for(["experiment", "list"])).commands) == ["experiment"]
    everything = list(get_command(app_for([])).commands)
    assert {"train", "experiment", "serve"} < set(everything)
    for words in (["--help"], ["trian"], ["--version", "train"]):
        assert list(get_command(app_for(words)).commands) == everything


def test_only_the_command_that_is_called_is_imported() -> None:
    code = (
        "import sys; from steppe.cli import main; main(['version']); "
        "print([name for name in ('serve', 'cluster', 'train') if f'steppe.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_training_imports_neither_gymnasium_nor_export_before_the_first_timestep(tmp_path: Path) -> None:
    code = (
        "import sys; from steppe.runners.loop import TrainingLoop; from steppe.cli import main; late = "
        "['gymnasium', 'onnx', 'PIL', 'flax', 'tensorboardX', 'boto3', 'steppe.specs.serving', "
        "'steppe.runners.play.evaluation']; advance = TrainingLoop._count_chunk\n"
        "def told(*arguments):\n"
        "    print([name for name in late if name in sys.modules], file=sys.stderr)\n"
        "    advance(*arguments)\n"
        "TrainingLoop._count_chunk = told\n"
        "main('train CartPole-v1 --agent ppo -q -t 1024 --set video=false --set final_evaluation=null'.split())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path
    )
    assert done.stderr.strip() == "[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "steppe", "trian"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "did you mean" in done.stderr


def test_tfcli_is_another_name_for_steppe(steppe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {entry.name: entry.value for entry in entry_points(group="console_scripts")}
    assert scripts["tfcli"] == scripts["steppe"] == "steppe.cli:main"
    monkeypatch.setattr(sys, "argv", ["/some/bin/tfcli"])
    assert steppe("train", "--help").out.lstrip().startswith("Usage: tfcli train")
    assert '("tfcli --help" lists what there is)' in steppe("trian").err


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    everything = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == everything
    assert main(["help", "experiment", "stop"]) == 0
    assert "--no-download" in capsys.readouterr().out


def test_the_old_clients_module_starts_the_command_line() -> None:
    import tensorforce_client

    source = Path(tensorforce_client.__file__).parents[1]
    asked = subprocess.run(
        [sys.executable, "-m", "tensorforce_client", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
        check=True,
    )
    assert asked.stdout.startswith("steppe ")
