"""Commands import no module that a file names, unless the user allows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from coded_policies import ENVIRONMENT, LAYER, MARKER, save_coded, write_module
from endpoints import save_policy, serve
from processes import Steppe, wait_until

from steppe.experiments.run_folder.store import RunFolder
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec

SENTENCE = (
    'error: the policy in policy has the layer "weights_util:Layer", which would run code of the module '
    '"weights_util"; if you trust it, add --allow-modules weights_util (in Python allow_modules="weights_util")\n'
)


@pytest.fixture
def archive(shell: Steppe) -> Path:
    """An unpacked download: a policy and a module beside it; returns the file that importing the module writes."""
    save_coded(shell.folder / "policy", "weights_util:Layer")
    return write_module(shell.folder, "weights_util")


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "export", "policy", "--to", "x.onnx"),
        ("serve", "policy", "--port", "0"),
        ("record", "--policy", "policy"),
    ],
)
def test_a_policy_that_was_unpacked_runs_no_code(shell: Steppe, archive: Path, words: tuple[str, ...]) -> None:
    answer = shell(*words)
    assert (answer.code, answer.out, answer.err) == (2, "", SENTENCE)
    assert not archive.exists()


def test_neither_does_one_in_a_whole_project_that_was_unpacked(shell: Steppe) -> None:
    marker = write_module(shell.folder, "weights_util")
    (shell.folder / "steppe.json").write_text('{"name": "x", "remote_id": null, "schema_version": 1}')
    network = [{"type": "weights_util:Layer"}]
    folder = RunFolder(shell.folder / "experiments" / "first")
    folder.create(ExperimentSpec(name="first", environment="CartPole-v1", agent="dqn", network=network))
    save_coded(folder.path / "policy", "weights_util:Layer")
    for words in (("policy", "export", "first"), ("serve", "-e", "first", "--port", "0"), ("record", "-e", "first")):
        answer = shell(*words)
        assert (answer.code, "add --allow-modules weights_util" in answer.err) == (2, True), answer
    for words in (("experiment", "list"), ("experiment", "show", "-e", "first"), ("report", "-e", "first")):
        answer = shell(*words)
        assert answer.code == 0, answer.err
    assert not marker.exists()


def test_with_permission_it_is_served_and_recorded_and_other_names_do_not_help(shell: Steppe, archive: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    answer = shell(
        "serve", "policy", "--port", "0", "--allow-modules", "weights,weights_util2", "--allow-modules", "os"
    )
    assert (answer.code, answer.err) == (2, SENTENCE)
    assert not archive.exists()
    served = serve(shell, "policy", "--allow-modules", "other,weights_util")
    assert served.get("/v2/models/policy")["inputs"][0]["shape"] == [-1, 4]
    assert archive.exists()
    words = ("--episodes", "1", "--allow-modules", "other", "--allow-modules", "weights_util")
    answer = shell("record", "--policy", "policy", *words)
    assert answer.code == 0, answer.err
    answer = shell("policy", "export", "policy", "--allow-modules", "weights_util")
    assert answer.err == 'error: the layer "weights_util:Layer" is a flax module, which cannot be exported to ONNX\n'


def test_an_endpoint_outlives_policies_that_name_modules(shell: Steppe) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    marker = write_module(shell.folder, "quitter", LAYER + "raise SystemExit(3)\n")
    save_policy(shell.folder / "walk", timestep=7)
    served = serve(shell, "walk", "--watch", "--allow-modules", "quitter")

    def problem() -> str:
        (policy,) = json.loads(shell("serve", "versions", "--url", served.url, "--json").out)
        return policy["problem"] or ""

    save_coded(shell.folder / "walk", "venv.__main__:X", timestep=8)
    wait_until(lambda: 'the layer "venv.__main__:X", which would run code' in problem(), "the policy is refused")
    assert not marker.exists()
    save_coded(shell.folder / "walk", "quitter:Layer", timestep=9)
    wait_until(lambda: 'its module "quitter" ends the program' in problem(), "the policy is refused")
    assert marker.exists()
    assert not served.command.has_ended
    save_policy(shell.folder / "walk", timestep=10)
    wait_until(lambda: not problem(), "a good policy is taken")


@pytest.fixture
def coded_run(here: Path) -> Path:
    """A run in an environment and a wrapper of a module; returns the file that importing either writes."""
    environment = EnvironmentSpec(id="their_world:make", wrappers=[{"type": "their_wrapper:wrap"}])
    folder = RunFolder(here / "steppe-runs" / "first")
    folder.create(ExperimentSpec(name="first", environment=environment, agent="dqn", max_timesteps_per_episode=5))
    save_policy(folder.path / "policy", environment="their_world:make")
    write_module(here, "their_wrapper", ENVIRONMENT)
    return write_module(here, "their_world", ENVIRONMENT)


def test_recording_makes_no_environment_of_a_module_that_is_not_allowed(
    steppe: Callable, here: Path, coded_run: Path
) -> None:
    answer = steppe("record", "-e", "first")
    assert answer.code == 2
    assert 'experiment "first" has the environment "their_world:make", which would run code of the' in answer.err
    answer = steppe("record", "-e", "first", "--allow-modules", "their_world")
    assert 'experiment "first" has the wrapper "their_wrapper:wrap", which would run code of the' in answer.err
    answer = steppe("record", "--policy", "steppe-runs/first")
    assert "add --allow-modules their_world" in answer.err
    (here / "named.json").write_text('{"id": "their_world:make"}')
    answer = steppe("record", "-e", "first", "-E", "named.json")
    assert "add --allow-modules their_world" in answer.err
    assert not coded_run.exists()


def test_recording_with_permission(shell: Steppe) -> None:
    marker = write_module(shell.folder, "their_world", ENVIRONMENT)
    save_policy(shell.folder / "walk", environment="their_world:make")
    # Typing the module's name allows it.
    for words in (("--allow-modules", "their_world"), ("-E", "their_world:make")):
        marker.unlink(missing_ok=True)
        answer = shell("record", "--policy", "walk", "--episodes", "1", "--force", *words)
        assert answer.code == 0, answer.err
        assert marker.exists()


def test_playing_makes_no_environment_that_only_a_file_names(steppe: Callable, here: Path) -> None:
    write_module(here, "their_world", ENVIRONMENT)
    (here / "named.json").write_text('{"id": "their_world:make"}')
    answer = steppe("play", "--url", "http://127.0.0.1:9", "-E", "named.json", "--patience", "0")
    assert (answer.code, "add --allow-modules their_world" in answer.err) == (2, True), answer
    assert not (here / MARKER).exists()


def test_a_wrong_module_name_to_allow_is_refused(steppe: Callable, here: Path) -> None:
    answer = steppe("serve", "walk", "--allow-modules", "my_layers:Layer")
    assert answer.err == 'error: wrong module "my_layers:Layer" to allow; write its name, such as my_layers\n'
