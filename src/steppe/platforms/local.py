"""This machine: detached processes that outlive the terminal they were started from."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from steppe.errors import SteppeError

UNKNOWN = 255
"""The exit code of a process that no one can be asked about any more."""


class LocalProcess:
    """A child process of its own session."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Its number."""
        return self._pid

    def exit_code(self) -> int | None:
        """How it ended, or None while it runs."""
        if self._exit_code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                # It has ended, but this process ignores SIGCHLD, so the kernel has thrown the exit code away.
                self._exit_code = UNKNOWN
            else:
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def end(self) -> None:
        """Asks it to end (SIGTERM); one that has ended already is left alone."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)


class LocalPlatform:
    """Starts processes on this machine."""

    name = "local"

    def launch(self, command: list[str], log: Path, variables: Mapping[str, str] | None = None) -> LocalProcess:
        """Starts a command in a new session, so that neither Ctrl-C nor a closed terminal reaches it."""
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess.Popen: that complains when a process outlives the object, which is the point here.
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                os.environ | {"PYTHONUNBUFFERED": "1"} | dict(variables or {}),
                file_actions=actions,
                setsid=True,
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            )
        except OSError as error:
            raise SteppeError(f"cannot start a process for {log.parent.name}: {error.strerror or error}") from error
        return LocalProcess(pid)
