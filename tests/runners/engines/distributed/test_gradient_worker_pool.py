"""Working, missing and lost workers, with fake workers that answer at once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.runners.engines.distributed import gradient_worker_pool
from steppe.runners.engines.distributed.gradient_worker_pool import GradientWorkerPool
from steppe.runners.engines.distributed.messages import WorkOrder, WorkReport
from steppe.specs.running.distributed import RaySpec


class RayTaskError(Exception):
    """Ray's error if a method raised one."""


class RayError(Exception):
    """Ray's error for a dead actor."""


class GetTimeoutError(RayError):
    """Ray's error for a timeout."""


class Ray:
    """A fake Ray that answers at once; `broken` is the result of every order after the first."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self, broken: Any = None) -> None:
        self.broken, self.ended = broken, 0

    def remote(self, _: type) -> Ray:
        return self

    def options(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(remote=self._actor)

    def _actor(self, number: int) -> SimpleNamespace:
        def answer(*_: Any) -> Answer:
            return Answer(self.broken if self.broken is not None else WorkReport(number, pushes=1))

        begin = SimpleNamespace(remote=lambda: Answer(WorkReport(number)))
        return SimpleNamespace(begin=begin, collect=SimpleNamespace(remote=answer), close=begin)

    def wait(self, answers: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return answers, []

    def get(self, answer: Answer, timeout: float | None = None) -> Any:
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def kill(self, _: Any) -> None:
        self.ended += 1


class Answer:
    """A fake reference."""

    def __init__(self, value: Any) -> None:
        self.value = value


def made(ray: Ray) -> GradientWorkerPool:
    team = GradientWorkerPool(ray, RaySpec(), lambda number: number, 60.0, 0)  # type: ignore[arg-type,return-value]
    team.fill(2)
    team.poll(0.0)
    return team


def order() -> WorkOrder:
    return WorkOrder([], 1, 0.2, 0, 2)


def work(team: GradientWorkerPool) -> list[WorkReport]:
    team.order("collect", 1, order)
    return team.poll(0.0)


def test_workers_that_are_ready_get_orders_and_report():
    team = made(Ray())
    assert (team.working, team.is_complete, team.is_busy) == (2, True, False)
    assert [report.worker for report in work(team)] == [0, 1]


def test_a_lost_worker_is_replaced_by_one_with_a_new_number(caplog):
    ray = Ray()
    team = made(ray)
    ray.broken = RayError("gone")
    with caplog.at_level(logging.WARNING):
        assert work(team) == []
    assert (team.working, team.next_number, ray.ended) == (0, 4, 2)
    assert "worker 0 was lost (its process or its machine is gone); worker 2 takes its place" in caplog.text


@pytest.mark.parametrize(
    ("broken", "kind", "words"),
    [
        (RayError("gone"), SteppeError, "workers are lost faster than they can be replaced"),
        (WorkReport(0, fault="the simulator is broken"), EnvironmentFault, "the simulator is broken"),
        (WorkReport(0, mistake="write something else"), UserError, "write something else"),
    ],
)
def test_losses_without_work_in_between_end_the_run(broken, kind, words):
    team = made(Ray(broken))

    def work_on() -> None:
        for _ in range(2 + gradient_worker_pool.SPARE_LOSSES):
            work(team)
            team.poll(0.0)

    with pytest.raises(kind, match=words):
        work_on()


def test_a_worker_that_never_starts_is_logged_and_no_longer_waited_for(monkeypatch, caplog):
    ray = Ray()
    ray.wait = lambda answers, **_: ([], answers)  # type: ignore[method-assign]
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    team = made(ray)
    now += 61.0
    with caplog.at_level(logging.WARNING):
        team.poll(0.0)
        team.poll(0.0)
    assert caplog.text.count("the Ray cluster may have no room") == 2, "once for each worker"
    now += 600.0
    team.poll(0.0)
    assert team.next_number == 4, "and then it is replaced"


def test_a_slow_first_order_extends_the_timeout_of_the_second(monkeypatch, caplog):
    ray = Ray(WorkReport(0, pushes=1, seconds=70.0))
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    team = made(ray)
    assert len(work(team)) == 2
    team.order("collect", 1, order)
    ray.wait = lambda answers, **_: ([], answers)  # type: ignore[method-assign]
    now += 10 * 70.0 - 1.0
    team.poll(0.0)
    assert (team.next_number, caplog.text) == (2, ""), "both are only slow"
    now += 2.0
    with caplog.at_level(logging.WARNING):
        team.poll(0.0)
    assert team.next_number == 4
    assert "it has said nothing for 701 s; distributed.worker_timeout sets how long that may be" in caplog.text


def test_other_reports_are_read_before_a_fault_ends_the_run(monkeypatch):
    monkeypatch.setattr(gradient_worker_pool, "SPARE_LOSSES", -2)
    answers = [WorkReport(0, pushes=3, fault="the simulator is broken"), WorkReport(1, pushes=5)]
    ray = Ray()
    team = made(ray)
    team.order("collect", 1, order)
    ray.get = lambda _: answers.pop(0)  # type: ignore[assignment,method-assign,misc]
    with pytest.raises(EnvironmentFault, match="the simulator is broken"):
        team.poll(0.0)
    assert [(report.worker, report.pushes) for report in team.unreported()] == [(0, 3), (1, 5)]
    assert team.unreported() == []


@pytest.mark.parametrize(
    ("why", "ending"),
    [
        (RayError("the actor is gone"), "the checkpoint lacks it\n"),
        (
            GetTimeoutError("too slow"),
            "the checkpoint lacks it; distributed.worker_timeout sets how long it may take\n",
        ),
    ],
)
def test_a_worker_that_does_not_send_its_state_is_logged(caplog, why, ending):
    ray = Ray()
    team = made(ray)
    own = {"memory": 1}
    for slot, answer in zip(team._slots, (own, why), strict=True):
        slot.actor.arrays = SimpleNamespace(remote=lambda answer=answer: Answer(answer))
    with caplog.at_level(logging.WARNING):
        assert team.arrays() == {0: own}
    assert f"worker 1 did not send its own state ({why})" in caplog.text
    assert ending in caplog.text
