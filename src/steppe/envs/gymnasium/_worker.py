"""A worker process that steps its share of the environments.

It is started as `python -m steppe.envs.gymnasium._worker MEMORY COMMANDS ANSWERS`.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys

from steppe.errors import SteppeError, UserError
from steppe.specs.user_code import traceback_of


def main(memory: int, commands: int, answers: int) -> None:
    """Executes commands until their pipe closes; the arguments are file descriptors."""
    # Ctrl-C reaches the whole process group; the parent handles it and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.loads(_read(commands, int.from_bytes(_read(commands, 8), "little")))
    sys.path[:] = job["path"]
    try:
        _serve(job, memory, commands, answers)
    except BrokenPipeError:
        pass
    except SteppeError as error:
        _report(answers, error)


def _serve(job: dict, memory: int, commands: int, answers: int) -> None:
    # The user's path is set only now.
    from steppe.envs.gymnasium._processes import read_spaces, shared_arrays
    from steppe.envs.gymnasium._sync import StepBuffers, SyncEnvs
    from steppe.specs.environment import EnvironmentSpec

    first, end = job["first"], job["end"]
    actions, buffers = shared_arrays(mmap.mmap(memory, 0), *read_spaces(job), job["count"])
    mine = StepBuffers(*(array[first:end] for array in buffers))
    loop = SyncEnvs(EnvironmentSpec(**job["spec"]), end - first, job["max_timesteps"], job["repeat"], first)
    try:
        os.write(answers, b"k")
        while command := os.read(commands, 1):
            try:
                if command == b"r":
                    loop.reset(int.from_bytes(_read(commands, 16), "little"), mine.next_observations)
                elif not loop.step(actions[first:end], mine):
                    # The parent reads the observations of all workers at once, so they must always be written.
                    mine.observations[:] = mine.next_observations
                os.write(answers, b"k")
            except SteppeError as error:
                _report(answers, error)
    finally:
        loop.close()


def _report(answers: int, error: SteppeError) -> None:
    kind = "user" if isinstance(error, UserError) else "fault"
    traceback = traceback_of(error) if error.__cause__ is not None else ""
    text = json.dumps({"kind": kind, "message": str(error), "traceback": traceback}).encode()
    os.write(answers, b"e" + len(text).to_bytes(8, "little") + text)


def _read(fd: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            raise SystemExit(0)
        parts += part
    return parts


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
