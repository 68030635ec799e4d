"""`steppe image build|push` with fakes of docker and podman, and the image itself in Pods of the testbed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kube_testbed import ROOT, Testbed
from processes import wait_until

from steppe import __version__, images
from steppe.cli import main

STAND_IN = """#!{python}
import json, os, pathlib, sys
name = pathlib.Path(sys.argv[0]).name
if sys.argv[1] == "info":
    print(os.environ.get(f"COMPLAINT_OF_{{name}}", ""), file=sys.stderr)
    sys.exit(f"COMPLAINT_OF_{{name}}" in os.environ)
context = pathlib.Path(sys.argv[-1])
seen = sorted(path.relative_to(context).as_posix() for path in context.glob("*")) if context.is_dir() else []
has_source = (context / "src" / "steppe" / "images.py").is_file()
with open({calls!r}, "a") as calls:
    print(json.dumps({{"program": name, "words": sys.argv[1:], "context": seen, "has_source": has_source}}), file=calls)
sys.exit(int(os.environ.get("EXIT_CODE", 0)))
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes PATH contain only fakes of the named programs; returns the file in which they record their calls."""
    folder, calls = tmp_path / "programs", tmp_path / "calls.jsonl"

    def install(*names: str) -> Path:
        folder.mkdir()
        for name in names:
            (folder / name).write_text(STAND_IN.format(python=sys.executable, calls=str(calls)))
            (folder / name).chmod(0o755)
        calls.touch()
        monkeypatch.setenv("PATH", str(folder))
        return calls

    return install


@pytest.fixture
def steppe(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Runs a command."""

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return command


def called(calls: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_build_hands_the_checkout_to_docker(programs, steppe):
    calls = programs("docker", "podman")
    answer = steppe("image", "build", "--extras", "atari,onnx", "--package", "highway-env==1.10.1")
    assert answer.code == 0, answer.err
    (call,) = called(calls)
    assert call["program"] == "docker"
    words = call["words"]
    assert words[0] == "build"
    assert words[words.index("--tag") + 1] == f"steppe:{__version__}"
    assert words[words.index("--target") + 1] == "cpu"
    assert "EXTRAS=cluster,onnx,atari" in words
    assert "PACKAGES=highway-env==1.10.1" in words
    assert words[-1] == str(ROOT)
    assert call["has_source"]
    assert f'"kubernetes": {{"image": "steppe:{__version__}"}}' in answer.out


def test_podman_builds_for_gpus_under_a_given_name(programs, steppe):
    calls = programs("podman")
    answer = steppe("image", "build", "--gpu", "-t", "registry.example.com:5000/team/steppe:7", "--base", "sim:3")
    (call,) = called(calls)
    assert call["program"] == "podman"
    assert call["words"][call["words"].index("--target") + 1] == "gpu"
    assert "BASE=sim:3" in call["words"]
    assert "steppe image push registry.example.com:5000/team/steppe:7" in answer.out


def test_a_docker_without_its_daemon_is_passed_over(programs, steppe, monkeypatch):
    calls = programs("docker", "buildah")
    monkeypatch.setenv("COMPLAINT_OF_docker", "Cannot connect to the Docker daemon")
    assert steppe("image", "build").code == 0
    (call,) = called(calls)
    assert (call["program"], call["words"][0]) == ("buildah", "bud")


def test_a_program_that_does_not_work_is_named_with_its_reason(programs, steppe, monkeypatch):
    programs("docker")
    monkeypatch.setenv("COMPLAINT_OF_docker", "ERROR: Cannot connect to the Docker daemon.")
    answer = steppe("image", "build")
    assert answer.code == 1
    assert answer.err == (
        "error: docker is there but does not work (Cannot connect to the Docker daemon); "
        "start it, or install podman or buildah\n"
    )


def test_an_error_without_any_program_explains_what_to_install(programs, steppe):
    programs()
    answer = steppe("image", "push", "example.com/a:1")
    assert (answer.code, "install one first" in answer.err) == (2, True)


def test_a_program_can_be_chosen(programs, steppe):
    calls = programs("docker", "podman")
    assert steppe("image", "push", "example.com/a:1", "--program", "podman").code == 0
    assert called(calls)[0]["words"] == ["push", "example.com/a:1"]
    assert "docker, podman or buildah" in steppe("image", "build", "--program", "kaniko").err


def test_failed_builds_and_pushes_are_one_sentence_errors(programs, steppe, monkeypatch):
    programs("docker")
    monkeypatch.setenv("EXIT_CODE", "3")
    build = steppe("image", "build", "-t", "a:1")
    assert (build.code, build.err) == (1, "error: docker could not build a:1 (exit code 3; its own words are above)\n")
    push = steppe("image", "push", "example.com/a:1")
    assert push.code == 1
    assert "are you logged in (docker login example.com)?" in push.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "-t", "Steppe:1"], "cannot be an image's name"),
        (["build", "-t", "a b"], "cannot be an image's name"),
        (["build", "--extras", "atri"], 'unknown extra "atri"; did you mean "atari"?'),
        (["build", "--package", "--index-url=http://example.com"], "is no package"),
        (["push", "steppe:1"], "names no registry"),
    ],
)
def test_mistakes_are_found_before_anything_runs(programs, steppe, words, said):
    calls = programs("docker")
    answer = steppe("image", *words)
    assert answer.code == 2
    assert said in answer.err
    assert called(calls) == []


def test_dry_run_prints_the_command_and_runs_nothing(programs, steppe):
    calls = programs("docker")
    answer = steppe("image", "build", "--package", "a>=1", "--package", "b", "--dry-run")
    assert answer.out.startswith("docker build --tag steppe:")
    assert "'PACKAGES=a>=1 b'" in answer.out
    assert steppe("image", "push", "example.com/a:1", "--dry-run").out == "docker push example.com/a:1\n"
    assert called(calls) == []


def test_a_dry_run_needs_no_working_program(programs, steppe, monkeypatch):
    monkeypatch.setenv("COMPLAINT_OF_docker", "no daemon")
    programs("docker")
    assert steppe("image", "build", "--dry-run").out.startswith("docker build --tag steppe:")
    assert steppe("image", "build").code == 1
    monkeypatch.setenv("PATH", "/nowhere")
    assert steppe("image", "push", "example.com/a:1", "--dry-run").out == "docker push example.com/a:1\n"
    assert steppe("image", "push", "example.com/a:1", "--program", "dokcer", "--dry-run").code == 2


def test_an_installed_wheel_builds_from_a_copy_of_itself(programs, tmp_path):
    """The build uses only the wheel's own files: the package folder, and share/steppe as pip unpacks it."""
    site, shared = tmp_path / "site-packages", tmp_path / "share" / "steppe"
    shutil.copytree(ROOT / "src" / "steppe", site / "steppe", ignore=shutil.ignore_patterns("__pycache__"))
    shared.mkdir(parents=True)
    for file in images.FILES:
        shutil.copy(ROOT / file, shared)
    info = site / f"steppe-{__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: steppe\nVersion: {__version__}\n")
    (info / "RECORD").write_text("../share/steppe/Dockerfile,,\n")
    calls = programs("docker")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "steppe", "image", "build"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (call,) = called(calls)
    assert call["context"] == sorted([*images.FILES, "src"])
    assert call["has_source"]
    assert not Path(call["words"][-1]).exists()


def test_the_wheel_contains_all_files_of_the_build():
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["data-files"] == {"share/steppe": list(images.FILES)}


def test_dockerfile_copies_only_what_the_ignore_file_lets_through():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert {source for sources in copied for source in sources} == kept


@pytest.mark.parametrize("page", ["docs/kubernetes.md", "docs/commands.md", "src/steppe/cli/image.py"])
def test_the_documented_base_image_is_that_of_the_dockerfile(page):
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.findall(r"python:3[\w.-]*\w", (ROOT / page).read_text()) == [base]


def test_the_image_trains_as_any_user_on_a_read_only_disk(testbed: Testbed, namespace: str, image: str):
    words = ["train", "CartPole-v1", "-t", "20000", "--seed", "1", "-q", "-n", "run"]
    printed = run_to_its_end(testbed, namespace, image, words)
    assert "Traceback" not in printed


def test_the_image_has_neither_tests_nor_tools(testbed: Testbed, namespace: str, image: str):
    script = (
        "import importlib.util, json, os, steppe; names = 'ray msgpack onnx jax pytest torch mypy'.split(); "
        "there = [name for name in names if importlib.util.find_spec(name)]; home = os.environ['HOME']; "
        "print(json.dumps({'uid': os.getuid(), 'home': home, 'there': there, 'version': steppe.__version__}))"
    )
    printed = run_to_its_end(testbed, namespace, image, command=["python", "-c", script])
    assert json.loads(printed) == {
        "uid": 1000,
        "home": "/home/steppe",
        "there": ["ray", "msgpack", "onnx", "jax"],
        "version": __version__,
    }


def run_to_its_end(
    testbed: Testbed,
    namespace: str,
    image: str,
    words: list[str] | None = None,
    command: list[str] | None = None,
) -> str:
    """Runs one Pod under strict security settings (no root, no capabilities, read-only root); returns its output."""
    container = {
        "name": "steppe",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": "/results",
        "volumeMounts": [{"name": "results", "mountPath": "/results"}, {"name": "cache", "mountPath": "/home/steppe"}]
        + [{"name": "temporary", "mountPath": "/tmp"}],
        "securityContext": {
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"limits": {"cpu": "1", "memory": "2Gi"}},
    }
    if words is not None:
        container["args"] = words
    if command is not None:
        container["command"] = command
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"fsGroup": 1000},
        "volumes": [{"name": name, "emptyDir": {}} for name in ("results", "cache", "temporary")],
    }
    testbed.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}, namespace=namespace)

    def ended() -> dict[str, Any] | None:
        (pod,) = testbed.objects("pods", namespace)
        return pod if pod["status"]["phase"] in ("Succeeded", "Failed") else None

    pod = wait_until(ended, "the Pod has ended", 240, pause=0.5)
    printed = testbed.kubectl("logs", "-n", namespace, "one")
    assert pod["status"]["phase"] == "Succeeded", printed
    return printed
