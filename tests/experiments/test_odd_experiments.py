"""Damaged and forged run folders: each is listed with its problem, and none hides the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from steppe.cli import main
from steppe.errors import StateError
from steppe.experiments import lifecycle
from steppe.experiments.locations import location_of
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import RunFolder, Store
from steppe.records import checkpoints
from steppe.specs.experiment import ExperimentSpec
from steppe.tracking.metrics import MetricsWriter

DEEP = "[" * 100_000
DAMAGES: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "random bytes": bytes(range(256)),
    "a list": b"[]",
    "deeply nested": DEEP.encode(),
    "an unknown state": b'{"state": "dancing"}',
    "a state of a wrong type": b'{"state": ["running"]}',
    "a time of a wrong type": b'{"state": "running", "heartbeat": "now"}',
    "a count that is too large": b'{"state": "completed", "timestep": 1' + b"0" * 400 + b"}",
    "notices of a wrong type": b'{"state": "failed", "notices": [1]}',
}


def damage(path: Path, data: bytes | None) -> None:
    """Puts `data` in place of a file, or removes it."""
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


@pytest.fixture
def trained(folder: RunFolder, trainer: type) -> RunFolder:
    run(folder, trainer=trainer(total=30))
    with MetricsWriter(folder.path) as metrics:
        metrics.write({"timestep": 30})
    return folder


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_trained_experiment_without_a_readable_status_has_failed_and_can_be_resumed(
    trained: RunFolder, trainer: type, data: bytes | None
) -> None:
    damage(trained.path / "status.json", data)
    status = trained.local_status()
    assert (status.state, status.timestep) == ("failed", 30)
    assert status.reason.startswith("its status cannot be read: ")
    with pytest.raises(StateError, match="has failed and cannot be started; to train on use: steppe experiment resume"):
        lifecycle.prepare(trained)
    with pytest.raises(StateError, match="has failed and cannot be stopped"):
        location_of(trained).stop()
    lifecycle.prepare(trained, resume=True)
    run(trained, resume=True, trainer=trainer(total=60))
    assert checkpoints.list_checkpoints(trained.path) == [30, 60]
    assert trained.local_status().state == "completed"


def test_counts_that_were_written_as_floats_are_read(trained: RunFolder) -> None:
    damage(trained.path / "status.json", b'{"state": "completed", "timestep": 30, "update": 24.0}')
    status = trained.local_status()
    assert (status.state, status.update) == ("completed", 24)
    assert isinstance(status.update, int)
    damage(trained.path / "status.json", b'{"state": "completed", "timestep": 30, "update": 24.5}')
    assert trained.local_status().is_unreadable


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES.keys())
def test_starting_anew_keeps_everything_of_an_experiment_without_a_readable_status(
    trained: RunFolder, trainer: type, data: bytes | None
) -> None:
    damage(trained.path / "status.json", data)
    lifecycle.prepare(trained, force=True)
    run(trained, trainer=trainer(total=20))
    (aside,) = trained.path.glob("before-*")
    assert checkpoints.list_checkpoints(aside) == [30]
    assert (aside / "metrics.jsonl").is_file()
    assert checkpoints.list_checkpoints(trained.path) == [20]


def test_a_start_never_writes_over_results_whatever_the_status_says(trained: RunFolder, trainer: type) -> None:
    damage(trained.path / "status.json", b'{"state": "created"}')
    run(trained, trainer=trainer(total=20))
    (aside,) = trained.path.glob("before-*")
    assert checkpoints.list_checkpoints(aside) == [30]
    assert checkpoints.list_checkpoints(trained.path) == [20]


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES.keys())
def test_every_command_answers_about_an_unreadable_status(
    trained: RunFolder, data: bytes | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = trained.path.parent.parent
    (root / "steppe.json").write_text('{"name": "odd", "schema_version": 1}')
    monkeypatch.chdir(root)
    damage(trained.path / "status.json", data)
    for words in (["experiment", "show"], ["experiment", "show", "--json"], ["experiment", "logs"], ["report"]):
        assert main([*words, "-e", "first"]) == 0, (words, capsys.readouterr().err)
    capsys.readouterr()
    assert main(["experiment", "delete", "-e", "first", "--force"]) == 0, capsys.readouterr().err
    assert not trained.path.exists()


def test_a_new_start_in_a_file_of_metrics_is_marked(tmp_path: Path) -> None:
    for _ in range(2):
        MetricsWriter(tmp_path).close()
        with MetricsWriter(tmp_path) as metrics:
            metrics.write({"timestep": 1})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "started" in [line.get("event") for line in lines]


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        # A socket's path may have 107 bytes only.
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**10)


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def text(content: str) -> Callable[[Path], None]:
    return lambda path: damage(path, content.encode())


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": fifo,
    "a socket": bound_socket,
    "a device": endless,
    "a loop": loop,
    "gigabytes": gigabytes,
    "a folder": a_folder,
    "deep": text(DEEP),
    "a list": text("[1]"),
    "a number": text("1"),
    "null": text("null"),
    "text": text('"x"'),
    "empty": text(""),
}
SPECS: dict[str, Callable[[Path], None]] = KINDS | {
    "missing": lambda path: path.unlink(),
    "an environment of a wrong type": text('{"environment": [1], "agent": "ppo"}'),
    "an agent of a wrong type": text('{"environment": "a", "agent": {"type": {}}}'),
    "a limit of a wrong type": text('{"environment": "a", "agent": "ppo", "total_timesteps": {}}'),
    "an endless limit": text('{"environment": "a", "agent": "ppo", "total_timesteps": 1e999}'),
    "a run mode of a wrong type": text('{"environment": "a", "agent": "ppo", "run_mode": 1}'),
}
ODD = (
    [("status.json", name, make) for name, make in KINDS.items()]
    + [("experiment.json", name, make) for name, make in SPECS.items()]
    + [("cluster.json", name, make) for name, make in KINDS.items()]
    + [(".lock", name, make) for name, make in KINDS.items() if name not in ("a device",)]
)


@pytest.mark.parametrize(("file", "make"), [(f, m) for f, _, m in ODD], ids=[f"{f} is {n}" for f, n, _ in ODD])
def test_an_odd_experiment_does_not_keep_others_from_being_listed(
    store: Store,
    spec: ExperimentSpec,
    file: str,
    make: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("good", "odd"):
        store.folder(name).create(spec.model_copy(update={"name": name}))
    checkpoints.save(store.folder("odd").path, 5, {"a": np.zeros(1)}, {})
    make(store.folder("odd").path / file)
    (store.path.parent / "steppe.json").write_text('{"name": "odd", "schema_version": 1}')
    monkeypatch.chdir(store.path.parent)
    assert main(["experiment", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"good", "odd"}
    assert rows["good"]["state"] == "created"
    if file in ("experiment.json", "cluster.json"):
        assert rows["odd"]["error"]
    elif file == "status.json":
        assert rows["odd"]["state"] == "failed"
        assert "its status cannot be read" in rows["odd"]["note"]
    assert main(["experiment", "list"]) == 0
    shown = capsys.readouterr().out
    assert "good" in shown
    assert ("unreadable" in shown) == ("error" in rows["odd"])


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "a\udcffb", "two words"])
def test_names_that_are_no_names_are_listed_without_doing_harm(
    store: Store, spec: ExperimentSpec, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.folder("good").create(spec)
    RunFolder(store.path / name).create(spec)
    (store.path / "nowhere").symlink_to("nowhere")
    (store.path / "a file").write_text("")
    (store.path.parent / "steppe.json").write_text('{"name": "odd", "schema_version": 1}')
    monkeypatch.chdir(store.path.parent)
    assert main(["experiment", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert main(["experiment", "list"]) == 0
    shown = capsys.readouterr().out
    shown.encode()
    assert "\x1b" not in shown
    assert "good" in shown


AS_NOBODY = """
import os, sys
from steppe.cli import main
os.chdir(sys.argv[1])
main(["experiment", "list"])  # imports all that is needed while this user may read it
sys.stdout.flush()
print("--- as another user", flush=True)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["experiment", "list"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_run_folder_that_may_not_be_read_is_listed_as_unreadable(spec: ExperimentSpec) -> None:
    # Not in pytest's own folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        _check_as_nobody(Store(Path(folder) / "experiments"), spec)


def _check_as_nobody(store: Store, spec: ExperimentSpec) -> None:
    for name in ("closed", "open"):
        store.folder(name).create(spec)
    root = store.path.parent
    (root / "steppe.json").write_text('{"name": "odd", "schema_version": 1}')
    root.chmod(0o755)
    (store.path / "closed").chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(root)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"HOME": str(root), "XDG_CONFIG_HOME": str(root)},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.partition("--- as another user\n")[2].splitlines()]
    assert ["closed", "unreadable"] in rows
    assert ["open", "created"] in [row[:2] for row in rows], done.stdout
