"""A real PostgreSQL that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from ports import free_port


class PostgresServer:
    """A PostgreSQL on a free port of loopback, with a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="steppe-postgres-"))
        # PostgreSQL refuses to run as root.
        self._user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "postgres", "postgres")
        self.port = free_port()
        self._process: subprocess.Popen | None = None
        arguments = ["-D", str(self.folder / "data"), "-U", "steppe", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        subprocess.run([program("initdb"), *arguments], check=True, capture_output=True, cwd="/", **self._user)
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://steppe@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Starts the server and returns when it accepts connections."""
        import psycopg

        arguments = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        # Tests kill processes and never the machine, so writes need not reach the disk.
        arguments += ["-c", "fsync=off"]
        with (self.folder / "log.txt").open("ab") as log:
            command = [program("postgres"), *arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)
        for _ in range(2400):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log.txt").read_text())

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """Ends it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(120)
            self._process = None

    def remove(self) -> None:
        """Ends it and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def missing_postgres() -> str | None:
    """The reason why PostgreSQL cannot run here, or None."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return 'psycopg is not installed (pip install "steppe[postgres]")'
    return None if program("initdb") and program("postgres") else "PostgreSQL is not installed (apt: postgresql)"


def program(name: str) -> str | None:
    """The path of one of PostgreSQL's programs, which are not on PATH everywhere."""
    found = [shutil.which(name), *(str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))]
    return next((path for path in found if path), None)
