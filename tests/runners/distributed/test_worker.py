"""What a worker does before its first order, without a Ray around it."""

from __future__ import annotations

import pytest

from steppe.errors import UserError
from steppe.runners import setup, simulators
from steppe.runners.distributed import worker
from steppe.runners.distributed.words import Posting
from steppe.specs.experiment import ExperimentSpec

BESIDE = {"type": "remote", "address": "127.0.0.1:5555"}


@pytest.mark.parametrize(("platform", "came"), [("kubernetes", ["waited", "opened"]), ("local", ["opened"])])
def test_the_simulator_in_its_own_pod_is_waited_for(monkeypatch, platform, came):
    pytest.importorskip("ray")
    happened = []

    def opened(*_, **__):
        happened.append("opened")
        raise UserError("enough")

    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker, "_share_gpu", lambda: None)
    monkeypatch.setattr(simulators, "wait_for_simulator", lambda environment: happened.append("waited"))
    monkeypatch.setattr(setup, "make_engine", opened)
    given = {"name": "x", "environment": BESIDE, "agent": "ppo", "run_mode": "distributed", "platform": platform}
    spec = ExperimentSpec.model_validate(given)
    posting = Posting(1, 1, spec.model_dump(mode="json"), [0, 1], 1, False, 1.0, None, ())
    assert worker.Worker(posting).begin().mistake == "enough"
    assert happened == came
