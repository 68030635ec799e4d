"""Runs whose folders are on a small disk that fills up or becomes read-only."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import TINY, Steppe, start_training, wait_until

from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest

pytestmark = pytest.mark.faults
FULL = "the disk is full; free some space"
READ_ONLY = "it may not be written to (read-only disk or missing permission); make it writable"


class Disk:
    """A disk of four megabytes in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, spare: int) -> None:
        """Leaves at most `spare` bytes free; call it repeatedly, since the run may free some of its own."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while (size := self._free() - spare) > 0:
                file.write(bytes(min(size, 65536)))

    def empty(self) -> None:
        """Frees the space that `fill` has taken."""
        self._ballast.unlink()

    def remount(self, mode: str) -> None:
        """Remounts the disk with mode `ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True)

    def _free(self) -> int:
        system = os.statvfs(self.folder)
        return system.f_bavail * system.f_frsize


@pytest.fixture
def disk(steppe: Steppe) -> Iterator[Disk]:
    """A small disk that is mounted at the project's experiments/."""
    folder = steppe.folder / "experiments"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "steppe-faults", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not permitted here")
    yield Disk(folder)
    steppe.end()
    if subprocess.run(["umount", str(folder)], check=False).returncode:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("spare", [0, 60_000], ids=["not a byte", "too little for a checkpoint"])
def test_a_full_disk_ends_the_run_with_one_sentence_and_an_intact_last_checkpoint(
    steppe: Steppe, disk: Disk, spare: int
) -> None:
    command, run = start_training(steppe, "first")

    def has_ended() -> bool:
        disk.fill(spare)
        return command.has_ended

    wait_until(has_ended, "the full disk ended it")
    # The process may have freed space at its end.
    disk.fill(spare)
    answer = command.answer()
    assert answer.code == 1
    assert re.fullmatch(rf"error: cannot write {run.path}/\S+: {FULL}\n", answer.err)
    row = steppe.listed("first")
    assert row["state"] == "failed"
    assert row["reason"] == answer.err.removeprefix("error: ").rstrip()
    newest = run.checkpoints[-1]
    assert (load_latest(run.path).timestep, load_latest(run.path).skipped) == (newest, [])
    load_policy(run.path / "policy")

    full = steppe("experiment", "start", "-e", "first", "--resume")
    assert full.code == 1
    assert re.fullmatch(rf"error: cannot write {run.path}/\S+: {FULL}\n", full.err)
    assert load_latest(run.path).timestep >= newest

    disk.empty()
    again = steppe("experiment", "start", "-e", "first", "--resume", "--set", f"total_timesteps={newest + 3000}")
    assert (again.code, again.err) == (0, "")
    assert (run.state, load_latest(run.path).skipped) == ("completed", [])
    assert run.unfinished == []


def test_commands_name_a_read_only_disk_and_can_still_read_it(steppe: Steppe, disk: Disk) -> None:
    command, run = start_training(steppe, "first")
    command.send(signal.SIGINT)
    assert command.answer().code == 130
    disk.remount("ro")

    for words in (["start", "--resume"], ["resume"], ["start", "--force"], ["stop"]):
        answer = steppe("experiment", *words, "-e", "first")
        assert answer.code == 1
        assert re.fullmatch(rf"error: cannot write {run.path}/\S+: {re.escape(READ_ONLY)}\n", answer.err), words
    detached = steppe("experiment", "resume", "-e", "first", "--detach")
    assert (detached.code, detached.err.count("\n")) == (1, 1)
    assert "read-only" in detached.err.lower()
    new = steppe("train", *TINY, "-n", "second")
    assert (new.code, new.err) == (1, f"error: cannot write {disk.folder / 'second'}: {READ_ONLY}\n")
    assert steppe.listed("first")["state"] == "paused"
    assert steppe("experiment", "show", "-e", "first").code == 0

    disk.remount("rw")
    assert steppe("experiment", "stop", "-e", "first").code == 0
    assert run.state == "stopped"
