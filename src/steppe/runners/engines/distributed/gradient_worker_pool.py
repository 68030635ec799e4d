"""The driver's side of the workers: sends orders, receives reports, and replaces lost workers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.runners.engines.distributed.gradient_worker import GradientWorker
from steppe.runners.engines.distributed.messages import WorkerConfig, WorkOrder, WorkReport
from steppe.specs.running.distributed import RaySpec

CLOSE_SECONDS = 5.0
"""How long environments may take to close."""
PATIENCE = 10
"""A worker hangs if an order takes this many times as long as the longest order so far."""
FORGIVEN_PER_PUSH = 0.1
SPARE_LOSSES = 5
"""The run fails when more workers than there are plus SPARE_LOSSES were lost; each push makes up for a part of one."""

log = logging.getLogger(__name__)


class _SentOrder(NamedTuple):
    """An order that is not answered yet."""

    answer: Any
    """Ray's reference."""
    pushes: int
    """How many pushes it allows."""


@dataclass
class _WorkerSlot:
    """One worker."""

    number: int
    actor: Any
    sent: deque[_SentOrder] = field(default_factory=deque)
    since: float = 0.0
    """When it began with the first order."""
    has_begun: bool = False
    has_worked: bool = False
    is_missed: bool = False
    """Whether it was logged that it has not started."""


class GradientWorkerPool:
    """All workers. A lost worker is replaced, and no two workers ever have the same number."""

    def __init__(
        self,
        ray: Any,
        spec: RaySpec,
        make_config: Callable[[int], WorkerConfig],
        timeout: float,
        first: int,
        room: Mapping[str, float] | None = None,
    ) -> None:
        """`room` are the resources that each worker asks Ray for beside CPUs and GPUs."""
        self._ray, self._spec, self._timeout, self._room = ray, spec, timeout, dict(room or {})
        self._make_config = make_config
        self._slots: list[_WorkerSlot] = []
        self.next_number = first
        self._longest = 0.0
        self._losses = 0.0
        self._unreported: list[WorkReport] = []

    def fill(self, workers: int, numbers: Sequence[int] = ()) -> None:
        """Starts workers until there are `workers`, the first with the `numbers` of a checkpoint."""
        self._slots += [self._start_worker(number) for number in numbers[:workers]]
        while len(self._slots) < workers:
            self._slots.append(self._start_worker())

    @property
    def working(self) -> int:
        """How many workers are ready."""
        return sum(slot.has_begun for slot in self._slots)

    @property
    def awaited(self) -> list[int]:
        """The numbers of the workers that are not ready yet."""
        return [slot.number for slot in self._slots if not slot.has_begun]

    @property
    def is_complete(self) -> bool:
        """Whether every worker is ready or long overdue, and at least one is ready."""
        return self.working > 0 and all(slot.has_begun or slot.is_missed for slot in self._slots)

    @property
    def is_busy(self) -> bool:
        """Whether any ready worker has an order."""
        return any(slot.sent for slot in self._slots if slot.has_begun)

    @property
    def pushes_allowed(self) -> int:
        """How many pushes the unanswered orders allow."""
        return sum(sent.pushes for slot in self._slots for sent in slot.sent)

    def order(self, method: str, depth: int, make: Callable[[], WorkOrder | None]) -> None:
        """Sends every ready worker orders until it has `depth` of them, or `make` returns None."""
        for _ in range(depth):
            for slot in self._slots:
                if slot.has_begun and len(slot.sent) < depth:
                    order = make()
                    if order is None:
                        return
                    self._send(slot, method, order.pushes, order)

    def poll(self, seconds: float) -> list[WorkReport]:
        """Waits up to `seconds` for a report; returns all that have arrived by then.

        If a report ends the run, its error is raised after all were read; `unreported` then returns the others.
        """
        heads = {slot.sent[0].answer: slot for slot in self._slots if slot.sent}
        if not heads:
            time.sleep(max(seconds, 0.0))
            return []
        ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=max(seconds, 0.0))
        if ready:
            ready, _ = self._ray.wait(list(heads), num_returns=len(heads), timeout=0)
        reports: list[WorkReport] = []
        ends: list[SteppeError] = []
        for each in ready:
            try:
                self._take_answer(heads[each], reports)
            except SteppeError as end:
                ends.append(end)
        if ends:
            self._unreported += reports
            raise ends[0]
        for slot in list(self._slots):
            silent = time.monotonic() - slot.since if slot.sent else 0.0
            if silent > self._allowance(slot):
                way_out = "distributed.worker_timeout sets how long that may be"
                self._replace(slot, f"it has said nothing for {silent:.0f} s; {way_out}")
            elif silent > self._timeout and not slot.has_begun and not slot.is_missed:
                slot.is_missed = True
                log.warning(
                    "worker %d has not started yet; the Ray cluster may have no room for its %g CPUs and %g GPUs",
                    *(slot.number, self._spec.cpus_per_worker, self._spec.gpus_per_worker),
                )
        return reports

    def unreported(self) -> list[WorkReport]:
        """The reports that were read when `poll` raised an error."""
        reports, self._unreported = self._unreported, []
        return reports

    def arrays(self) -> dict[int, dict[str, np.ndarray]]:
        """The state of each ready worker that no server has, by number; called while no worker has an order."""
        asked = {slot.number: slot.actor.arrays.remote() for slot in self._slots if slot.has_begun}
        deadline = time.monotonic() + self._patience
        found = {}
        for number, answer in asked.items():
            try:
                found[number] = self._ray.get(answer, timeout=max(deadline - time.monotonic(), 1.0))
            except self._ray.exceptions.RayError as error:
                # A worker that is gone does not answer the next order either, and is replaced then.
                is_slow = isinstance(error, self._ray.exceptions.GetTimeoutError)
                log.warning(
                    "worker %d did not send its own state (%s), so the checkpoint lacks it%s",
                    *(number, _last_line(error)),
                    "; distributed.worker_timeout sets how long it may take" if is_slow else "",
                )
        return found

    def close(self) -> None:
        """Closes the environments, then ends all workers."""
        slots, self._slots = self._slots, []
        with suppress(Exception):
            ends = [slot.actor.close.remote() for slot in slots if slot.has_begun]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=CLOSE_SECONDS)
        for slot in slots:
            with suppress(Exception):
                self._ray.kill(slot.actor)

    def _take_answer(self, slot: _WorkerSlot, reports: list[WorkReport]) -> None:
        """Reads the answer to the oldest order; raises an error that ends the run."""
        sent = slot.sent.popleft()
        slot.since = time.monotonic()
        try:
            report: WorkReport = self._ray.get(sent.answer)
        except self._ray.exceptions.RayTaskError as error:
            self._replace(slot, _last_line(error))
            return
        except self._ray.exceptions.RayError:
            self._replace(slot, "its process or its machine is gone")
            return
        reports.append(report)
        for level, line in report.log:
            log.log(level, "worker %d: %s", slot.number, line)
        if report.mistake is not None:
            raise UserError(report.mistake)
        if report.fault is not None:
            self._replace(slot, report.fault, is_fault=True)
            return
        # Includes the first order, which may compile: a wait that is too long is better than ending a slow worker.
        self._longest = max(self._longest, report.seconds)
        slot.has_worked, slot.has_begun = slot.has_begun, True
        self._losses = max(0.0, self._losses - FORGIVEN_PER_PUSH * report.pushes)

    def _allowance(self, slot: _WorkerSlot) -> float:
        """How many seconds an answer may take; the first order also compiles everything."""
        if not slot.has_worked:
            return 10 * self._timeout
        return self._patience

    @property
    def _patience(self) -> float:
        return max(self._timeout, PATIENCE * self._longest)

    def _replace(self, slot: _WorkerSlot, reason: str, is_fault: bool = False) -> None:
        """Ends a worker and starts another in its place, unless too many were lost."""
        with suppress(Exception):
            self._ray.kill(slot.actor)
        self._losses += 1
        if self._losses > len(self._slots) + SPARE_LOSSES:
            # Its answers are no longer awaited.
            slot.sent.clear()
            if is_fault:
                raise EnvironmentFault(reason)
            raise SteppeError(
                f"workers are lost faster than they can be replaced, the last one because {reason}; look at log.txt "
                "and at the machines that Ray runs on, then resume from the last checkpoint"
            )
        new = self._start_worker()
        log.warning("worker %d was lost (%s); worker %d takes its place", slot.number, reason, new.number)
        self._slots[self._slots.index(slot)] = new

    def _start_worker(self, number: int | None = None) -> _WorkerSlot:
        if number is None:
            number, self.next_number = self.next_number, self.next_number + 1
        options = {
            "num_cpus": self._spec.cpus_per_worker,
            "num_gpus": self._spec.gpus_per_worker,
            "resources": self._room,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        slot = _WorkerSlot(
            number, self._ray.remote(GradientWorker).options(**options).remote(self._make_config(number))
        )
        self._send(slot, "begin", 0)
        return slot

    def _send(self, slot: _WorkerSlot, method: str, pushes: int, *arguments: Any) -> None:
        if not slot.sent:
            slot.since = time.monotonic()
        slot.sent.append(_SentOrder(getattr(slot.actor, method).remote(*arguments), pushes))


def _last_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
