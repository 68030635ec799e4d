"""`steppe init -r` links a project to a cloud project, and does not copy the key."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steppe.clusters.settings import CloudLink, linked

Steppe = Callable[..., Any]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    path.write_text(json.dumps({"type": "service_account", "private_key": "very secret", "client_email": "a@b"}))
    return path


def test_the_key_is_noted_by_its_path_and_never_copied(steppe: Steppe, here: Path, key: Path) -> None:
    assert steppe("init", "-r", "cloud-7", "--key", str(key)).code == 0
    assert linked(here) == CloudLink("cloud-7", str(key))
    written = [path for path in here.rglob("*") if path.is_file()]
    assert not any("very secret" in path.read_text() for path in written)


def test_without_a_key_the_credentials_of_the_machine_are_used(steppe: Steppe, here: Path) -> None:
    assert steppe("init", "-r", "cloud-7").code == 0
    assert linked(here) == CloudLink("cloud-7", None)
    assert "service_account_key" not in json.loads(Path("steppe.json").read_text())


def test_a_project_that_exists_is_linked_and_keeps_its_files(steppe: Steppe, here: Path, key: Path) -> None:
    assert steppe("init", "-n", "mine").code == 0
    config = here / "configs" / "clusters" / "small_cluster.json"
    config.write_text("{}")
    answer = steppe("init", "-r", "cloud-8", "--key", str(key))
    assert answer.code == 0, answer.err
    assert "linked the project" in answer.out
    assert config.read_text() == "{}"
    assert json.loads(Path("steppe.json").read_text())["name"] == "mine"
    assert linked(here) == CloudLink("cloud-8", str(key))
    # Linking again, to another project without a key.
    assert steppe("init", "-r", "cloud-9").code == 0
    assert linked(here) == CloudLink("cloud-9", None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read the service account's key"),
        ("{}", "is no key of a service account"),
        ("-----BEGIN", "is no key of a service account"),
    ],
)
def test_an_invalid_key_is_refused_before_anything_is_written(
    steppe: Steppe, here: Path, tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    answer = steppe("init", "-r", "cloud-7", "--key", str(path))
    assert answer.code == 2
    assert words in answer.err
    assert list(here.iterdir()) == []


def test_a_key_needs_a_cloud_project(steppe: Steppe, key: Path) -> None:
    answer = steppe("init", "--key", str(key))
    assert answer.code == 2
    assert "name that with -r" in answer.err


def test_a_key_inside_the_project_causes_a_warning(steppe: Steppe, here: Path, key: Path) -> None:
    inside = here / "key.json"
    inside.write_text(key.read_text())
    assert "keep it out of version control" in steppe("init", "-r", "cloud-7", "--key", str(inside)).out


def test_a_person_is_asked_for_the_keys_path(here: Path, key: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "steppe", "init", "-r", "cloud-7"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.close(theirs)
    try:
        os.write(ours, f"{key}\n".encode())
        printed, _ = process.communicate(timeout=120)
    finally:
        os.close(ours)
    assert process.returncode == 0, printed
    assert "The path of the service account's key" in printed
    assert linked(here) == CloudLink("cloud-7", str(key))
