"""The engine of run mode async: receives batches from workers, learns in between, and reports to the training loop."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from steppe.errors import CheckpointError, EnvironmentFault, UserError
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.engines.asynchronous.cores._base import Core, Learned
from steppe.runners.engines.asynchronous.learner.worker_pool import WorkerPool
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess
from steppe.runners.episode_window import EpisodeWindow
from steppe.runners.play.episodes import EpisodeRules, play

EVALUATIONS = 20
"""How many greedy episodes the evaluation return is the mean of."""
ADVANCE_SECONDS = 0.25
"""How long one call of `advance` may last."""
LEARN_SECONDS = 0.05
"""How long to learn before looking at the inbox again, and how long to empty the inbox before learning again."""
SWITCH_SECONDS = 0.001
"""Python's switch interval: how long a thread that receives a batch may hold up the thread that learns."""
POST_SECONDS, POST_SHARE = 0.1, 0.05
"""The shortest time between two postings of a policy that nobody has asked for, and the largest share of time."""
RATE_SECONDS = 5.0
"""The time over which updates per second and utilisation are measured."""


class AsyncEngine(Engine):
    """One learner in this process; its workers are elsewhere."""

    resume_notice = (
        "workers start new episodes, and whose batch comes first is up to them; parameters, optimiser, replay memory "
        "and counts go on as they were"
    )
    least_iterations = 64
    """A call is limited by its time instead."""

    def __init__(
        self,
        core: Core,
        open_server: Callable[[str], tuple[WorkerServer, LearnerAccess]],
        pool: WorkerPool,
        rules: EpisodeRules | None = None,
        num_envs: int = 1,
    ) -> None:
        """`open_server` takes the host to listen at; `rules` are for evaluations in this process, None if it has no
        environment."""
        self.agent = core.agent
        self.core = core
        if rules is not None:
            # All workers use the time limit that was found in this process.
            core.task = replace(core.task, max_timesteps=rules.max_timesteps, repeat_actions=rules.repeat_actions)
        self.timesteps_per_iteration = core.task.rows_for(num_envs)[1] * num_envs
        self._open_server, self._pool, self._rules = open_server, pool, rules
        self._server: WorkerServer | None = None
        self._window = EpisodeWindow()
        self._evaluations: deque[tuple[float, int]] = deque(maxlen=EVALUATIONS)
        self._lag = 0.0
        self._metrics: dict[str, float] = {}
        self._meter = Meter()
        self._starts = self._dropped = self._timestep = 0
        self._saved: list[int] = []
        self._post_again = 0.0
        self._switching = sys.getswitchinterval()

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters; workers may join once everything is compiled."""
        server = self._open(seed)
        self.core.begin(seed)
        self._welcome(server)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Everything but the environments, which start new episodes."""
        if "async/counts" not in arrays:
            raise CheckpointError(
                "the checkpoint was made in another run mode and lacks what async needs; resume it in that one"
            )
        arrays = dict(arrays)
        self._window.record(arrays.pop("async/returns").tolist(), arrays.pop("async/lengths").tolist())
        self._evaluations.extend((score, int(length)) for score, length in arrays.pop("async/evaluations").tolist())
        counts = (int(each) for each in arrays.pop("async/counts"))
        numbers, self._dropped, lost, starts, self._timestep = counts
        self._starts = starts + 1
        server = self._open(seed)
        server.membership.resume(numbers, lost)
        self.core.restore(arrays, seed)
        self._welcome(server)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The learner with its memory, the window of episodes, and all counts."""
        self._saved = counts = self._counts()
        return self.core.snapshot() | {
            "async/returns": _stored(self._window.returns, np.float32),
            "async/lengths": _stored(self._window.lengths, np.int32),
            "async/evaluations": _stored(chain.from_iterable(self._evaluations), np.float32).reshape(-1, 2),
            "async/counts": _stored(counts, np.int64),
        }

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Receives at most `iterations` batches and learns, for about a quarter of a second."""
        core, self._timestep = self.core, timestep
        deadline = time.monotonic() + ADVANCE_SECONDS
        rows: list[dict[str, float]] = []
        updates, fault, learned = 0, None, Learned()
        while True:
            fault = self._pool.supervise()
            before = len(rows)
            self._take_in(rows, iterations, limits)
            is_full = self._is_full(rows, iterations, limits)
            if core.can_learn:
                started = time.perf_counter()
                # Always for the full time, so that many batches do not starve the learning.
                learned = core.learn(LEARN_SECONDS)
                self._meter.add(time.perf_counter() - started, learned.updates)
                updates += learned.updates
                self._metrics = learned.metrics
            elif len(rows) == before and not is_full:
                self._opened.inbox.wait(min(LEARN_SECONDS, deadline - time.monotonic()))
            self._publish()
            is_over = self._window.has_reached(limits.stop_at_return) or not learned.is_healthy or fault is not None
            # Updates that are due for the received batches come first, as far as the time allows.
            if is_over or (is_full and core.wants_data) or time.monotonic() >= deadline:
                break
        return self._chunk(rows, updates, self._window.has_reached(limits.stop_at_return), learned.is_healthy, fault)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of this process while the workers continue."""
        if self._rules is None:
            raise UserError("this learner has no environment of its own to evaluate in; its workers evaluate")
        return play(self.policy(0), self._rules, min(episodes, 8), episodes, greedy, seed)

    def policy(self, timestep: int) -> Any:
        """The policy as of the last update."""
        return self.core.policy(timestep)

    @property
    def dropped(self) -> int:
        """How many batches were dropped because the inbox was full, over all starts of this run."""
        return self._dropped + self._opened.inbox.dropped

    def paused(self) -> AbstractContextManager[None]:
        """Meanwhile workers whose batch waits do not time out."""
        return self._opened.inbox.paused()

    def finish(self) -> bool:
        """Tells all workers that the run is over; True if batches were lost that the last snapshot did not count.

        Workers that waited with a batch will not send it again, as they would after a learner was killed.
        """
        self._opened.close("the run has ended")
        return self._counts() != self._saved

    def close(self) -> None:
        """Disconnects and ends all workers; may be called again."""
        try:
            if self._server is not None:
                self._server.close("the run has ended")
        finally:
            sys.setswitchinterval(self._switching)
            self._pool.close()

    def _counts(self) -> list[int]:
        """The counts for a checkpoint. Waiting batches are not saved, so for a resumed run they count as dropped."""
        server = self._opened
        waiting = len(server.inbox) + server.inbox.left + self.core.unsaved
        members = server.membership
        return [members.next_number, self.dropped + waiting, members.lost, self._starts, self._timestep]

    @property
    def _opened(self) -> WorkerServer:
        assert self._server is not None
        return self._server

    def _open(self, seed: int) -> WorkerServer:
        """Starts the server and the workers that will connect to it."""
        sys.setswitchinterval(SWITCH_SECONDS)
        host = self._pool.open()
        self._server, access = self._open_server(host)
        self._server.seed, self._server.starts = seed, self._starts
        self._pool.start(self._server, access.token)
        return self._server

    def _welcome(self, server: WorkerServer) -> None:
        server.board.post(self.core.weights(), self.core.updates)
        server.board.note(self._timestep, self.core.exploration(self._timestep))
        server.board.offer(self.core.task, self.core.spaces)

    def _take_in(self, rows: list[dict[str, float]], iterations: int, limits: ChunkLimits) -> None:
        """Receives waiting batches while the learner wants data and time is left; adds one row for each."""
        core, inbox = self.core, self._opened.inbox
        until = time.monotonic() + LEARN_SECONDS
        while core.wants_data and not self._is_full(rows, iterations, limits) and time.monotonic() < until:
            if (batch := inbox.take()) is None:
                return
            started = time.perf_counter()
            self._lag += 0.1 * (max(0, core.updates - batch.version) - self._lag)
            core.take_in(batch)
            self._meter.add(time.perf_counter() - started)
            self._timestep += batch.timesteps
            rows.append(self._row(batch))

    def _is_full(self, rows: list[dict[str, float]], iterations: int, limits: ChunkLimits) -> bool:
        """Whether this call may receive no further batch."""
        episodes = sum(row["episodes"] for row in rows)
        is_enough = limits.episodes is not None and episodes >= limits.episodes
        return is_enough or len(rows) >= iterations or self._window.has_reached(limits.stop_at_return)

    def _publish(self) -> None:
        """Posts the current exploration, and a newer policy if the last one was fetched or is old."""
        board = self._opened.board
        board.note(self._timestep, self.core.exploration(self._timestep))
        now = time.monotonic()
        if board.version == self.core.updates or not (board.is_wanted or now >= self._post_again):
            return
        board.post(self.core.weights(), self.core.updates)
        done = time.monotonic()
        self._post_again = done + max(POST_SECONDS, (done - now) / POST_SHARE)

    def _row(self, batch: Any) -> dict[str, float]:
        self._window.record(batch.returns, batch.lengths)
        self._evaluations.extend(batch.evaluations)
        return {
            "timesteps": batch.timesteps,
            "episodes": len(batch.returns),
            "mean_return": self._window.mean_return,
            "mean_length": self._window.mean_length,
        }

    def _chunk(
        self, rows: list[dict[str, float]], updates: int, reached: bool, healthy: bool, fault: EnvironmentFault | None
    ) -> Chunk:
        if updates and not rows:
            means = {"mean_return": self._window.mean_return, "mean_length": self._window.mean_length}
            rows = [{"timesteps": 0, "episodes": 0, **means}]
        columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        figures = self._figures()
        if rows:
            # The updates belong to all batches of this call alike.
            columns["updates"] = np.diff(np.arange(len(rows) + 1) * updates // len(rows))
            columns |= {name: np.full(len(rows), value) for name, value in (self._metrics | figures).items()}
        return Chunk(len(rows), columns, reached, healthy, fault, figures)

    def _figures(self) -> dict[str, float]:
        """The metrics of a parallel run beside its losses."""
        server = self._opened
        busy, updates = self._meter.rates()
        figures: dict[str, float] = {
            "workers": server.membership.here,
            "updates_per_second": updates,
            "policy_lag": self._lag,
            "waiting": server.inbox.waiting,
            "dropped": self.dropped,
            "lost": server.membership.lost,
            "learner_utilisation": busy,
        }
        if self._evaluations:
            scores, lengths = zip(*self._evaluations, strict=True)
            figures |= {"evaluation_return": float(np.mean(scores)), "evaluation_length": float(np.mean(lengths))}
        return figures


class Meter:
    """Measures the learner's recent utilisation and updates per second."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float, int]] = deque()
        self._begun = time.monotonic()

    def add(self, seconds: float, updates: int = 0) -> None:
        """Records work that ends now."""
        self._marks.append((time.monotonic(), seconds, updates))

    def rates(self) -> tuple[float, float]:
        """(the share of time spent working, updates per second)."""
        now = time.monotonic()
        while self._marks and self._marks[0][0] < now - RATE_SECONDS:
            self._marks.popleft()
        span = max(min(RATE_SECONDS, now - self._begun), 1e-9)
        busy = sum(mark[1] for mark in self._marks) / span
        return min(1.0, busy), sum(mark[2] for mark in self._marks) / span


def _stored(values: Iterable[float], dtype: type[np.float32 | np.int32 | np.int64]) -> np.ndarray:
    """Converts numbers for a checkpoint: out of range to the nearest number, NaN to 0, so that none prevents saving."""
    low: float
    high: float
    if issubclass(dtype, np.floating):
        low, high = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([0 if math.isnan(value) else min(max(value, low), high) for value in values], dtype)
