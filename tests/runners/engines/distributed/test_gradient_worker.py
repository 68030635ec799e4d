"""A worker before its first order, without Ray."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from one_process_ray import RayError, RayTaskError

from steppe.errors import EnvironmentFault, UserError
from steppe.runners import setup, simulators
from steppe.runners.engines.distributed import gradient_worker
from steppe.runners.engines.distributed.messages import WorkerConfig
from steppe.specs.experiment import ExperimentSpec

BESIDE = {"type": "remote", "address": "127.0.0.1:5555"}


@pytest.mark.parametrize(("platform", "came"), [("kubernetes", ["waited", "opened"]), ("local", ["opened"])])
def test_the_simulator_in_its_own_pod_is_waited_for(monkeypatch, platform, came):
    pytest.importorskip("ray")
    happened = []

    def opened(*_, **__):
        happened.append("opened")
        raise UserError("enough")

    monkeypatch.setattr(gradient_worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(gradient_worker, "_share_gpu", lambda: None)
    monkeypatch.setattr(simulators, "wait_for_simulator", lambda environment: happened.append("waited"))
    monkeypatch.setattr(setup, "make_engine", opened)
    given = {"name": "x", "environment": BESIDE, "agent": "ppo", "run_mode": "distributed", "platform": platform}
    spec = ExperimentSpec.model_validate(given)
    config = WorkerConfig(1, 1, spec.model_dump(mode="json"), [0, 1], 1, False, 1.0, None, ())
    assert gradient_worker.GradientWorker(config).begin().mistake == "enough"
    assert happened == came


def test_the_traceback_of_the_users_code_reaches_the_driver(monkeypatch):
    pytest.importorskip("ray")

    def opened(*_, **__):
        try:
            raise ValueError("no such room")
        except ValueError as error:
            raise EnvironmentFault("it raised") from error

    monkeypatch.setattr(gradient_worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(gradient_worker, "_share_gpu", lambda: None)
    monkeypatch.setattr(setup, "make_engine", opened)
    spec = ExperimentSpec.model_validate(
        {"name": "x", "environment": BESIDE, "agent": "ppo", "run_mode": "distributed"}
    )
    report = gradient_worker.GradientWorker(
        WorkerConfig(1, 1, spec.model_dump(mode="json"), [0, 1], 1, False, 1.0, None, ())
    ).begin()
    assert report.fault == "it raised"
    [(level, text)] = report.log
    assert level == logging.ERROR
    assert 'in opened\n    raise ValueError("no such room")\nValueError: no such room\n' in text


class SlowRay:
    """A fake Ray with its own clock; each reference is the second of its answer, or an error that is raised at once."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.now = 0.0

    def get(self, references: Any, timeout: float) -> Any:
        if not isinstance(references, list):
            return self._answer(references, self.now + timeout)
        deadline = self.now + timeout
        for each in references:
            if isinstance(each, Exception):
                raise each
        return [self._answer(each, deadline) for each in references]

    def _answer(self, reference: Any, deadline: float) -> Any:
        if isinstance(reference, Exception):
            raise reference
        self.now = max(self.now, min(reference, deadline))
        if reference > deadline:
            raise RayError("no answer in time")
        return reference


def received_from(monkeypatch, *references):
    ray = SlowRay()
    monkeypatch.setattr("time.monotonic", lambda: ray.now)
    return ray, gradient_worker.received(ray, references, 60.0)


def test_one_that_is_gone_leaves_the_others_their_time(monkeypatch):
    gone = RayError("gone")
    ray, values = received_from(monkeypatch, gone, 50.0, 20.0)
    assert values == [gone, 50.0, 20.0]
    assert ray.now == 50.0


def test_all_together_have_the_time_of_one(monkeypatch):
    ray, values = received_from(monkeypatch, 1000.0, 1000.0, 30.0)
    assert values[2] == 30.0
    assert all(isinstance(value, RayError) for value in values[:2])
    assert ray.now == pytest.approx(60.0, abs=3.0)


@pytest.mark.parametrize("others", [(), (RayError("gone"),)])
def test_a_server_method_that_raises_is_an_error_and_no_loss(monkeypatch, others):
    with pytest.raises(RayTaskError, match="division by zero"):
        received_from(monkeypatch, *others, RayTaskError("division by zero"))
