"""Learners of run mode async with workers in threads of the same process, without Ray or other processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from processes import wait_until

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.runners.compilation import prepare_jax
from steppe.runners.engines import asynchronous
from steppe.runners.engines.asynchronous.learner.core_factory import make_core
from steppe.runners.engines.asynchronous.learner.engine import AsyncEngine
from steppe.runners.engines.asynchronous.learner.worker_pool import UnmanagedPool
from steppe.runners.engines.asynchronous.learner.worker_server import server_opener
from steppe.runners.engines.asynchronous.worker.async_worker import work
from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress
from steppe.runners.loop import TrainingLoop
from steppe.runners.setup import num_envs_of

SECONDS = 60.0


class Threads(UnmanagedPool):
    """`count` workers, each in a thread; what ends one by an error is in `errors`."""

    def __init__(self, rules, num_envs, count):
        self.rules, self.num_envs, self.count = rules, num_envs, count
        self.threads: list[threading.Thread] = []
        self.errors: list[Exception] = []
        self.timesteps: list[int] = []
        self._have_joined = False

    def start(self, server, token):
        super().start(server, token)
        self.address, self.token = "{}:{}".format(*server.address), token
        for _ in range(self.count):
            self.send_one()
        # A worker that connects after the end of the learner would look for it for minutes.
        wait_until(lambda: self._some_have_ended or len(server._sessions) >= self.count, "all have connected")

    def supervise(self):
        """Keeps the run from ending before all workers have joined, however busy the machine is."""
        if self.threads and not self._have_joined:
            members, count = self._membership, len(self.threads)
            wait_until(lambda: self._some_have_ended or members.here >= count, "all have joined")
            self._have_joined = True
        return super().supervise()

    @property
    def _some_have_ended(self):
        return not all(thread.is_alive() for thread in self.threads)

    def send_one(self, **door: Any):
        thread = threading.Thread(target=self._work, args=(LearnerAddress(self.address, self.token, **door),))
        self.threads.append(thread)
        thread.start()
        return thread

    def close(self):
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def _work(self, door):
        try:
            rules = (self.num_envs, self.rules.max_timesteps, self.rules.repeat_actions)
            self.timesteps.append(work(door, lambda: GymnasiumEnvs(self.rules.environment, *rules)))
        except Exception as error:
            self.errors.append(error)


def async_engine(spec) -> AsyncEngine:
    """The engine of a spec, with its workers in threads."""
    prepare_jax()
    rules, spaces, limit, _ = asynchronous._explored(spec)
    num_envs = num_envs_of(spec)
    core = make_core(spec, spaces, limit)
    return AsyncEngine(
        core, server_opener(spec.asynchronous), Threads(rules, num_envs, spec.num_workers), rules, num_envs
    )


def train_async(folder: Path, spec, *, checkpoint=None, request=lambda: None, show=lambda progress: None):
    """Runs a training to its end and returns the outcome."""
    folder.mkdir(exist_ok=True)
    engine = async_engine(spec)
    try:
        return TrainingLoop(spec, engine, folder, request, show).run(checkpoint)
    finally:
        engine.close()
        assert not engine._pool.errors, engine._pool.errors
