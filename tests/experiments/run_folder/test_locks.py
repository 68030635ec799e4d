from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from steppe.errors import StorageError
from steppe.experiments.run_folder import locks

HOLD = """
import sys
from pathlib import Path
from steppe.errors import StorageError
from steppe.experiments.run_folder import locks
print(locks.acquire(Path(sys.argv[1])) is not None, flush=True)
{then}
sys.stdin.read()
"""


def _holder(folder: Path, then: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=then), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "True"
    return process


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first = locks.acquire(tmp_path)
    assert first is not None
    assert locks.acquire(tmp_path) is None
    locks.release(first)
    again = locks.acquire(tmp_path)
    assert again is not None
    locks.release(again)


@pytest.mark.faults
def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with _holder(tmp_path) as process:
        assert locks.acquire(tmp_path) is None
        process.kill()
        process.wait()
    descriptor = locks.acquire(tmp_path)
    assert descriptor is not None
    locks.release(descriptor)


@pytest.mark.faults
def test_an_orphaned_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork = "import os\nchild = os.fork()\nif child == 0:\n    import signal; signal.pause()\nprint(child, flush=True)"
    with _holder(tmp_path, fork) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            # The child may not have run yet when its parent is killed; it releases the lock when it runs.
            descriptor = locks.acquire(tmp_path, patience=20.0)
            assert descriptor is not None
            locks.release(descriptor)
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_lock_of_a_folder_that_was_deleted_is_not_a_lock_of_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    first = locks.acquire(folder)
    assert first is not None
    shutil.rmtree(folder)
    folder.mkdir()
    second = locks.acquire(folder)
    assert second is not None
    locks.release(first)
    assert locks.acquire(folder) is None
    locks.release(second)


@pytest.mark.parametrize(("folder_mode", "lock_mode"), [(0o755, 0o600), (0o700, 0o600), (0o775, 0o660), (0o777, 0o666)])
def test_only_those_who_may_write_the_folder_can_hold_its_lock(
    tmp_path: Path, folder_mode: int, lock_mode: int
) -> None:
    tmp_path.chmod(folder_mode)
    lock = tmp_path / ".lock"
    for _ in range(2):
        descriptor = locks.acquire(tmp_path)
        assert descriptor is not None
        locks.release(descriptor)
        assert stat.S_IMODE(lock.stat().st_mode) == lock_mode
        lock.chmod(0o644)  # as earlier versions made it


def test_a_lock_file_that_is_a_link_is_refused_and_nothing_is_made_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot lock"):
        locks.acquire(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
