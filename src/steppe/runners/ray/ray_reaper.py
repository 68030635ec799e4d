"""Ends the rest of a Ray when the process that started it is gone: `python ray_reaper.py FOLDER PID`.

Ray's own processes end when one of them does, but some only after a minute, and a stopped one never. All of them have
files open in the folder of their session, which nobody else uses, so they can be found by that. This program waits for
the end of its standard input, which comes when the session is over or its process has died in any way.

It only imports the standard library, since it runs beside every session and should take little memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE_SECONDS = 1.0
"""How long processes may take to end by themselves."""
GIVE_UP_SECONDS = 30.0


def main(folder: str, owner: int) -> None:
    """Waits, kills and removes the folder; the owner, which may have Ray's logs open, is not killed."""
    # A signal to the whole session must not end this program before its work.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    started = time.monotonic()
    while (pids := holders(folder) - {owner}) and time.monotonic() - started < GIVE_UP_SECONDS:
        if time.monotonic() - started > GRACE_SECONDS:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def holders(folder: str) -> set[int]:
    """The processes that have a file in the folder open."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return set()
    return {pid for pid in pids if _holds(pid, folder + os.sep)}


def _holds(pid: int, prefix: str) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(prefix):  # noqa: PTH115
                    return True
    return False


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
