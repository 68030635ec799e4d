"""Files that survive a crash."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steppe.errors import StorageError
from steppe.files import durable
from steppe.files.durable import remove_leftovers, temporary_name, write_atomically


def a_dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_file_holds_what_was_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "grüße")
    write_atomically(tmp_path / "a.json", b"\x00new")
    assert (tmp_path / "a.json").read_bytes() == b"\x00new"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_the_file_gets_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "atomic", "x")
    (tmp_path / "ordinary").write_text("x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EIO, "Input/output error")],
)
def test_a_failing_disk_leaves_the_old_file_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=words) as raised:
        write_atomically(path, "new")
    assert str(path) in str(raised.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder does not exist"):
        write_atomically(tmp_path / "gone" / "a", "x")


def test_the_data_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename"), replace(self, to))[1])
    write_atomically(tmp_path / "a", "x")
    assert order == ["sync", "rename", "sync"]


def test_leftovers_of_dead_writers_are_removed_and_files_of_living_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = durable.socket.gethostname()
    dead = tmp_path / f".tmp-{host}-{a_dead_process()}-0123abcd-0-a"
    earlier = tmp_path / f".tmp-{host}-{os.getpid()}-0123abcd-0-a"
    living = tmp_path / f".tmp-{host}-{os.getppid()}-0123abcd-0-a"
    own = tmp_path / temporary_name("a")
    elsewhere = tmp_path / ".tmp-another-host-1-0123abcd-0-a"
    forgotten = tmp_path / ".tmp-another-host-2-0123abcd-0-a"
    foreign = tmp_path / ".tmp-notes"
    (tmp_path / "plain").write_text("x")
    for path in (dead, earlier):
        path.mkdir()
        (path / "half").write_text("x")
    for path in (living, own, elsewhere, forgotten, foreign):
        path.write_text("x")
    os.utime(forgotten, (0, 0))
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {living, own, elsewhere, foreign, tmp_path / "plain"}
