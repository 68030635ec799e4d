from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from steppe.errors import SteppeError
from steppe.platforms import LocalPlatform, LocalProcess
from steppe.platforms.local import UNKNOWN


def _ended(process: LocalProcess) -> int:
    deadline = time.monotonic() + 30
    while (code := process.exit_code()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return code


@pytest.fixture
def platform() -> LocalPlatform:
    return LocalPlatform()


def test_output_is_added_to_the_log(platform: LocalPlatform, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    process = platform.launch([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"], log)
    assert _ended(process) == 0
    assert log.read_text().splitlines() == ["before", "out", "err"]


def test_the_exit_code_can_be_read_repeatedly(platform: LocalPlatform, tmp_path: Path) -> None:
    process = platform.launch([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log.txt")
    assert _ended(process) == 3
    assert process.exit_code() == 3


def test_a_process_has_a_session_of_its_own(platform: LocalPlatform, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    process = platform.launch([sys.executable, "-c", "import os; print(os.getsid(0), os.getpid())"], log)
    assert _ended(process) == 0
    session, pid = log.read_text().split()
    assert session == pid == str(process.pid)
    assert session != str(os.getsid(0))


def test_a_process_can_be_asked_to_end(platform: LocalPlatform, tmp_path: Path) -> None:
    process = platform.launch([sys.executable, "-c", "import signal; signal.pause()"], tmp_path / "log.txt")
    assert process.exit_code() is None
    process.end()
    assert _ended(process) == -15
    process.end()


def test_a_missing_command_is_a_one_sentence_error(platform: LocalPlatform, tmp_path: Path) -> None:
    with pytest.raises(SteppeError, match="cannot start a process"):
        platform.launch(["/nowhere/python"], tmp_path / "log.txt")


def test_an_ended_process_is_noticed_without_its_exit_code(platform: LocalPlatform, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = platform.launch([sys.executable, "-c", "pass"], tmp_path / "log.txt")
        assert _ended(process) == UNKNOWN
    finally:
        signal.signal(signal.SIGCHLD, before)
