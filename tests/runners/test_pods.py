"""The number of joined workers and servers that the training in a driver's Pod reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steppe.errors import UserError
from steppe.runners import pods
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.pod_pool import PodWorkerPool
from steppe.runners.play.episodes import EpisodeRules
from steppe.specs.experiment import ExperimentSpec


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that reads the current file."""
    file = tmp_path / "joined.json"
    monkeypatch.setenv(pods.JOINED_FILE_VARIABLE, str(file))
    return lambda: json.loads(file.read_text()) if file.exists() else None


def spec_of(**fields: Any) -> ExperimentSpec:
    return ExperimentSpec(name="x", environment="CartPole-v1", agent="random", platform="kubernetes", **fields)


def test_the_most_that_ever_were_here_are_remembered(joined: Any) -> None:
    roll = pods.RollCall()
    for here in (0, 2, 1):
        roll.note("worker", here, 3)
    assert joined() == {"worker": {"here": 1, "wanted": 3, "most": 2}}


def test_only_changed_counts_are_written(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(pods, "write_atomically", lambda file, text: written.append(text))
    roll = pods.RollCall()
    for here in (1, 1, 1, 2):
        roll.note("worker", here, 2)
    assert len(written) == 2


def test_outside_a_pod_no_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pods.JOINED_FILE_VARIABLE, raising=False)
    monkeypatch.setattr(pods, "write_atomically", lambda *_: pytest.fail("nobody has asked for it"))
    pods.RollCall().note("worker", 1, 2)


def test_a_driver_that_waits_for_pods_reports_how_many_joined(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{}, {"steppe_worker": 5.0}, {"steppe_worker": 5.0, "steppe_server": 1.0}])
    told = []

    def cluster_resources() -> dict[str, float]:
        told.append(joined())
        return next(seen)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(cluster_resources=cluster_resources))
    monkeypatch.setattr(pods, "LOOK_SECONDS", 0.0)
    pods.wait_for_pods(spec_of(run_mode="distributed", num_workers=4, num_parameter_servers=1), pods.RollCall())
    server = {"here": 0, "wanted": 1, "most": 0}
    assert told[1] == {"server": server, "worker": {"here": 0, "wanted": 4, "most": 0}}
    assert told[2] == {"server": server, "worker": {"here": 4, "wanted": 4, "most": 4}}
    assert joined()["server"] == {"here": 1, "wanted": 1, "most": 1}


def test_a_learner_reports_how_many_workers_joined(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(run_mode="async", num_workers=2)
    crew, membership = PodWorkerPool(spec, EpisodeRules(spec.environment, None, 1), 1), Membership()
    monkeypatch.setattr("steppe.runners.engines.asynchronous.learner.pod_pool.TEND_SECONDS", 0.0)
    crew.start(SimpleNamespace(membership=membership), None)  # type: ignore[arg-type]
    assert joined() == {"worker": {"here": 0, "wanted": 2, "most": 0}}
    connection = membership.join("first")[1]
    crew.supervise()
    membership.leave("first", connection, vanished=True)
    crew.supervise()
    assert joined() == {"worker": {"here": 0, "wanted": 2, "most": 1}}


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A learner's pool of two Pods, and its members."""
    spec, membership = spec_of(run_mode="async", num_workers=2), Membership()
    monkeypatch.setattr("steppe.runners.engines.asynchronous.learner.pod_pool.TEND_SECONDS", 0.0)
    made = PodWorkerPool(spec, EpisodeRules(spec.environment, None, 1), 1)
    made.start(SimpleNamespace(membership=membership), None)  # type: ignore[arg-type]
    return SimpleNamespace(supervise=made.supervise, membership=membership)


def test_workers_that_cannot_join_by_a_mistake_end_the_run_before_the_first_batch(crew: SimpleNamespace) -> None:
    crew.membership.decline("the module is not there", is_mistake=True)
    with pytest.raises(UserError, match=r"^workers cannot make the environment: the module is not there$"):
        crew.supervise()


def test_workers_that_cannot_join_are_replaced_while_others_can(crew: SimpleNamespace) -> None:
    crew.membership.join("first")
    crew.membership.claim("first", 1)
    crew.membership.decline("the module is not there", is_mistake=True)
    assert crew.supervise() is None


def test_workers_that_only_come_to_fail_end_the_run(crew: SimpleNamespace) -> None:
    for _ in range(16):
        crew.membership.decline("it has not made its environment within 300 s", is_mistake=False)
        assert crew.supervise() is None
    crew.membership.decline("it has not made its environment within 300 s", is_mistake=False)
    assert str(crew.supervise()) == (
        "workers die faster than they can be replaced; the last one: it has not made its environment within 300 s"
    )
