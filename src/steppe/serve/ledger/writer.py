"""The one thread that writes into a ledger, in order, with many records in one commit."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steppe.serve.ledger._base import (
    Arms,
    Ledger,
    LedgerAway,
    LedgerBatch,
    OpenEpisode,
    Record,
    Reward,
    RewardOutcome,
    line_of,
)
from steppe.serve.ledger.journal import MAX_AT_ONCE, Journals
from steppe.serve.messages.exchange import Unavailable

log = logging.getLogger("steppe.serve")

GATHERING_SECONDS = 0.25
"""How long a decision waits for others before it is written; a reward does not wait. Each write takes the interpreter
from the event loop a few dozen times, so a few large writes delay fewer requests."""
REFRESH_SECONDS = 0.5
"""How often a replica reads what others have learned."""
CLOSE_SECONDS = 20.0
"""Longest wait for the last records."""
SILENT_SECONDS = 5.0
"""Duration of a write after which new rewards are refused."""
_PAUSES = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to reach a database that is away."""


class _PendingRequest(NamedTuple):
    """A caller that waits for the ledger."""

    task: Reward | Callable[[Ledger], Any]
    """A reward to write with the batch, or a query to run after the batch is written."""
    future: asyncio.Future[Any]


@dataclass(slots=True)
class _PendingBatch:
    """A batch and the callers that wait for it."""

    batch: LedgerBatch
    requests: list[_PendingRequest] = field(default_factory=list)


class LedgerWriter:
    """Takes records at once and writes them soon; keeps a limited number of them while the ledger is away, but no
    rewards."""

    def __init__(
        self, ledger: Ledger, limit: int, learned: Callable[[Arms], None], journals: Journals | None = None
    ) -> None:
        self.dropped = 0
        """Records for which there was no room."""
        import orjson

        self._dumps = orjson.dumps
        self._ledger = ledger
        self._limit = limit
        self._learned = learned
        self._name = secrets.token_hex(8)
        self._number = self._written = 0
        """Number of the latest record, and of the last one in the ledger."""
        self._journal = None if journals is None else journals.begin(self._name)
        self._lock = threading.Lock()
        """Guards the next three attributes."""
        self._batches = deque([_PendingBatch(LedgerBatch(self._name))])
        """The last one is still growing."""
        self._in_progress: _PendingBatch | None = None
        """The batch being written; after a failure the same one is tried again."""
        self._queued = 0
        self._is_awake = threading.Event()
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._refreshed = time.monotonic()
        self._problem: str | None = None
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name="steppe-ledger", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why rewards are refused at the moment."""
        began = self._began
        if self._problem is None and began is not None and time.monotonic() - began > SILENT_SECONDS:
            silence = time.monotonic() - began
            return f"the ledger has not answered for {silence:.0f} seconds; rewards are refused until it does"
        return self._problem

    @property
    def queued(self) -> int:
        """How many records are not on disk yet."""
        return self._queued

    def put(self, record: Record) -> None:
        """Queues a record."""
        if self._queued >= self._limit:
            self.dropped += 1
            return
        self._number = number = self._number + 1
        line = line_of(number, record, self._dumps)
        with self._lock:
            self._growing().batch.add(number, record, line)
            self._queued += 1
        if self._journal is not None:
            self._journal.add(number, line)

    async def reward(self, reward: Reward) -> RewardOutcome:
        """Returns once a reward is on disk."""
        return await self._request(reward)

    async def find_episode(self, sequence: str) -> OpenEpisode | None:
        """An episode that another replica may have begun."""
        return await self._request(lambda ledger: ledger.find_episode(sequence))

    async def flush(self) -> None:
        """Returns once every earlier record is on disk."""
        await self._request(lambda ledger: None)

    async def prune(self, before: float) -> int:
        """Forgets some decisions from before a time; returns how many, 0 if none is left."""
        return await self._request(lambda ledger: ledger.prune(before, time.time()))

    async def close(self) -> None:
        """Writes the rest, with one last attempt if the ledger is away, and ends the thread."""
        self._is_closing = True
        self._is_awake.set()
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        if self._thread.is_alive():
            # A daemon thread cannot keep the process alive.
            log.error("the ledger does not answer; %d records may never be written down", self.queued)

    async def _request(self, task: Reward | Callable[[Ledger], Any]) -> Any:
        if self._is_closing:
            raise Unavailable("the endpoint is closing; ask again when it is back")
        if (problem := self.problem) is not None:
            raise Unavailable(problem)
        if self._queued >= self._limit:
            raise Unavailable("too many rewards wait to be written; send them again later")
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._lock:
            self._growing().requests.append(_PendingRequest(task, future))
            self._queued += 1
        self._is_awake.set()
        return await future

    def _growing(self) -> _PendingBatch:
        """The batch for the next record or request."""
        last = self._batches[-1]
        if last.batch.size + len(last.requests) >= MAX_AT_ONCE:
            self._batches.append(last := _PendingBatch(LedgerBatch(self._name)))
        return last

    def _run(self) -> None:
        failures = 0
        while True:
            self._is_awake.wait(GATHERING_SECONDS if not failures else _PAUSES[min(failures, len(_PAUSES)) - 1])
            is_last = self._is_closing
            self._is_awake.clear()
            # Records that arrive meanwhile wait for the next round: under constant traffic there would be no end.
            left, done = len(self._batches) + (self._in_progress is not None), True
            while done and (left > 0 or (is_last and self._queued)):
                done, left = self._write_next(), left - 1
            failures = 0 if done else failures + 1
            if is_last:
                self._finish()
                return

    def _finish(self) -> None:
        """Closes the ledger and refuses what could not be written."""
        requests, lost = self._take_requests(), self._queued
        if lost:
            if self._journal is not None and not self._journal.missing:
                log.error("%d records will be written into the ledger at the next start: %s", lost, self._problem)
            else:
                self.dropped += lost
                log.error("%d records were never written down: %s", lost, self._problem)
        if self._journal is not None:
            self._journal.close(self._written)
        self._answer(requests, [Unavailable(self._problem or "the endpoint is closed")] * len(requests), None)
        self._ledger.close()

    def _write_next(self) -> bool:
        """Writes one batch; False if the ledger is away."""
        taken = self._take()
        batch, requests = taken.batch, [request for request in taken.requests if not request.future.done()]
        must_refresh = self._problem is not None or (
            self._ledger.is_shared and time.monotonic() - self._refreshed > REFRESH_SECONDS
        )
        if not batch.size and not requests and not must_refresh:
            self._forget(taken)
            return True
        results: list[Any]
        self._began = time.monotonic()
        try:
            results, arms = self._write(batch, requests)
        except LedgerAway as error:
            if self._problem is None:
                log.error("%s; rewards are refused until it can", error)
            self._problem = f"{error}; rewards are refused until it can"
            # Requests that arrived during the attempt are refused too, since nothing else takes them out of the queue
            # before the ledger is back. Refused here and not in the event loop: by then the ledger may be back.
            requests = self._take_requests()
            self._answer(requests, [Unavailable(self._problem)] * len(requests), None)
            return False
        except Exception as error:
            # No known cause; a batch that cannot be written must not block the following ones.
            log.exception("the ledger refused %d records", batch.size)
            self.dropped += batch.size
            results, arms = [Unavailable(f"the ledger refused this: {error}")] * len(requests), None
        else:
            if self._problem is not None:
                log.warning("the ledger is back; %d records that had waited are written", batch.size)
            self._problem = None
        finally:
            self._began = None
        self._written = max(self._written, batch.number)
        self._forget(taken)
        if self._journal is not None:
            self._journal.written(self._written)
        self._refreshed = time.monotonic()
        self._answer(requests, results, arms)
        return True

    def _take(self) -> _PendingBatch:
        """The next batch to write; after a failure the same one, since it may have been written."""
        with self._lock:
            if self._in_progress is None:
                self._in_progress = self._batches.popleft()
                if not self._batches:
                    self._batches.append(_PendingBatch(LedgerBatch(self._name)))
            return self._in_progress

    def _forget(self, taken: _PendingBatch) -> None:
        """Forgets a batch that needs no more writing."""
        with self._lock:
            self._in_progress = None
            self._queued -= taken.batch.size + len(taken.requests)

    def _take_requests(self) -> list[_PendingRequest]:
        """Takes all requests out of the queue."""
        with self._lock:
            rounds = [*([] if self._in_progress is None else [self._in_progress]), *self._batches]
            requests = [request for each in rounds for request in each.requests]
            for each in rounds:
                each.requests = []
            self._queued -= len(requests)
        return requests

    def _write(self, batch: LedgerBatch, requests: list[_PendingRequest]) -> tuple[list[Any], Arms]:
        batch.rewards = [request.task for request in requests if isinstance(request.task, Reward)]
        written = self._ledger.write(batch)
        outcomes = iter(written.outcomes)
        results = [
            next(outcomes) if isinstance(request.task, Reward) else request.task(self._ledger) for request in requests
        ]
        return results, written.arms

    def _answer(self, requests: list[_PendingRequest], results: list[Any], arms: Arms | None) -> None:
        def answer() -> None:
            if arms is not None:
                self._learned(arms)
            for request, result in zip(requests, results, strict=True):
                # The caller may have given up meanwhile.
                if not request.future.done():
                    (request.future.set_exception if isinstance(result, Exception) else request.future.set_result)(
                        result
                    )

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(answer)
