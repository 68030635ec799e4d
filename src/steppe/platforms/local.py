"""This machine as a platform: detached processes that outlive the terminal from which they were started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from steppe.errors import SteppeError

UNKNOWN = 255
"""The exit code of a process whose real exit code is lost."""


class LocalProcess:
    """A child process with a session of its own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._pid

    def exit_code(self) -> int | None:
        """The exit code, minus the signal's number if a signal ended it; None while it runs."""
        if self._exit_code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                # It has ended, but this process ignores SIGCHLD, so the kernel has discarded the exit code.
                self._exit_code = UNKNOWN
            else:
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def end(self) -> None:
        """Sends SIGTERM, unless the process has ended."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)


class LocalPlatform:
    """Starts processes on this machine."""

    def launch(self, command: list[str], log: Path, variables: Mapping[str, str] | None = None) -> LocalProcess:
        """Starts a command in a new session, so that neither Ctrl-C nor a closed terminal reaches it.

        Its output is appended to the file `log`; `variables` are added to its environment.
        """
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # subprocess.Popen would warn when a process outlives the object, which is the purpose here.
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
