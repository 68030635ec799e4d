"""Environments in worker processes: results lie in shared memory, and one byte each way signals a step.

The workers are plain child processes of `python -m steppe.envs.gymnasium._worker`, neither forked (JAX's threads do not
survive a fork) nor spawned by `multiprocessing` (which would run the user's script again). A worker ends when its pipe
closes, so none outlives this process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from typing import IO, Any

import numpy as np

from steppe.envs.cores import available_cores
from steppe.envs.gymnasium._sync import StepBuffers, describe
from steppe.envs.gymnasium.factory import make_env
from steppe.envs.gymnasium.wrappers import notices_of
from steppe.errors import EnvironmentFault, StorageError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Space, action_dtype, from_json, to_json

IN_MEMORY = "/dev/shm"
END_SECONDS = 5.0
"""The time for a worker to close its environments and end."""


class ProcessEnvs:
    """N environments, spread over at most as many workers as there are processors."""

    def __init__(self, spec: EnvironmentSpec, count: int, max_timesteps: int | None, repeat: int) -> None:
        env, own_limit = make_env(spec)
        try:
            self.description, _, _ = describe(spec, env, own_limit, max_timesteps)
            self.notices = notices_of(env, spec.id)
        finally:
            env.close()
        self._id, self._taken = spec.id, 0
        observation_space, action_space, _ = self.description
        self._memory = _memory(shared_size(observation_space, action_space, count))
        self._actions, self._shared = shared_arrays(
            mmap.mmap(self._memory.fileno(), 0), observation_space, action_space, count
        )
        workers = min(count, available_cores())
        bounds = np.linspace(0, count, workers + 1).astype(int).tolist()
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers)
        job = {
            "spec": spec.model_dump(mode="json"),
            "count": count,
            "max_timesteps": max_timesteps,
            "repeat": repeat,
            "observation_space": to_json(observation_space),
            "action_space": to_json(action_space),
            "path": sys.path,
        }
        try:
            for first, end in itertools.pairwise(bounds):
                self._workers.append(_Worker({**job, "first": first, "end": end}, self._memory.fileno()))
            self._wait()
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """As `SyncEnvs.reset`."""
        self._taken = 0
        self._send(b"r" + seed.to_bytes(16, "little"))
        observations[:] = self._shared.next_observations

    def step(self, actions: np.ndarray, out: StepBuffers) -> bool:
        """As `SyncEnvs.step`."""
        self._taken += 1
        self._actions[:] = actions.reshape(self._actions.shape)
        self._send(b"s")
        for mine, theirs in zip(out, self._shared, strict=True):
            mine[:] = theirs
        return bool(out.terminated.any() or out.truncated.any())

    def close(self) -> None:
        """Ends the workers by closing their pipes, or by force if that fails."""
        self._finalizer()
        self._memory.close()

    def _send(self, command: bytes) -> None:
        for worker in self._workers:
            worker.send(command)
        self._wait()

    def _wait(self) -> None:
        """Waits for every worker, also if one has failed, so that all are ready for the next command."""
        where = f'environment "{self._id}" at step {self._taken}'
        failures = [failure for worker in self._workers if (failure := worker.wait(where)) is not None]
        if failures:
            raise failures[0]


class _Worker:
    """One child process and the two pipes to it."""

    def __init__(self, job: dict[str, Any], memory: int) -> None:
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        fds = (memory, read_commands, write_answers)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "steppe.envs.gymnasium._worker", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                # Workers share the processors, so thread pools of their own would slow each other down.
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        finally:
            os.close(read_commands)
            os.close(write_answers)
        text = json.dumps(job).encode()
        self.send(len(text).to_bytes(8, "little") + text)

    def send(self, command: bytes) -> None:
        """Writes a command; `wait` notices a dead worker."""
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(command)
            while view:
                view = view[os.write(self._commands, view) :]

    def wait(self, where: str) -> Exception | None:
        """The failure that the worker reports, or None after success."""
        match os.read(self._answers, 1):
            case b"k":
                return None
            case b"e":
                size = int.from_bytes(self._read(8), "little")
                report = json.loads(self._read(size))
                error = (UserError if report["kind"] == "user" else EnvironmentFault)(report["message"])
                if report["traceback"]:
                    error.add_note(f"in the worker process {self._process.pid}:\n{report['traceback']}")
                return error
            case _:
                code = self._process.wait()
                return EnvironmentFault(
                    f"{where}: its worker process {self._process.pid} ended with code {code}; correct the "
                    "environment (or give it more memory), then resume from the last checkpoint"
                )

    def dismiss(self) -> None:
        """Closes the pipes, after which the worker ends by itself."""
        for fd in (self._commands, self._answers):
            with contextlib.suppress(OSError):
                os.close(fd)

    def end(self) -> None:
        """Waits for a dismissed worker to end, and ends it by force if it does not."""
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size and (part := os.read(self._answers, size - len(parts))):
            parts += part
        return parts


def _end(workers: list[_Worker]) -> None:
    # All are dismissed first, so that slow ones end in parallel.
    for worker in workers:
        worker.dismiss()
    while workers:
        workers.pop().end()


def _memory(size: int) -> IO[bytes]:
    """An unnamed file of `size` bytes, in memory if there is room."""
    for folder in (IN_MEMORY, tempfile.gettempdir()):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            memory = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            if hasattr(os, "posix_fallocate"):
                # Reserved now, since a first write without room would kill the process.
                os.posix_fallocate(memory.fileno(), 0, size)
            memory.truncate(size)
            stack.pop_all()
            return memory
    raise StorageError(f"there is no room for {size:,} bytes in {IN_MEMORY} or in {tempfile.gettempdir()}; free some")


def shared_size(observation_space: Space, action_space: Space, count: int) -> int:
    """The bytes that `shared_arrays` needs."""
    return sum(_aligned(shape, dtype) for shape, dtype in _shapes(observation_space, action_space, count))


def shared_arrays(
    memory: mmap.mmap, observation_space: Space, action_space: Space, count: int
) -> tuple[np.ndarray, StepBuffers]:
    """(actions, results) of all environments as views of the shared memory."""
    arrays, offset = [], 0
    for shape, dtype in _shapes(observation_space, action_space, count):
        arrays.append(np.ndarray(shape, dtype, memory, offset))
        offset += _aligned(shape, dtype)
    return arrays[0], StepBuffers(*arrays[1:])


def read_spaces(job: dict[str, Any]) -> tuple[Space, Space]:
    """The spaces that the parent wrote into a worker's job."""
    return from_json(job["observation_space"]), from_json(job["action_space"])


def _shapes(observation_space: Space, action_space: Space, count: int) -> list[tuple[tuple[int, ...], str]]:
    seen = ((count, *observation_space.shape), observation_space.dtype)
    flags = ((count,), "bool")
    taken = ((count, *action_space.shape), action_dtype(action_space))
    return [taken, seen, seen, ((count,), "float32"), flags, flags]


def _aligned(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    # Each array has its own cache lines, to prevent false sharing between workers.
    return max(64, -(-size // 64) * 64)
