"""The learner's address for workers, and the replacement of missing ones, with a fake Ray and a fake clock."""

from __future__ import annotations

import contextlib
import itertools
import sys
from types import SimpleNamespace

import pytest
from runs import experiment

from steppe.errors import UserError
from steppe.runners.engines.asynchronous.learner import worker_pool
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.worker_pool import RayWorkerPool
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.ray.ray_session import RaySession


class Killed(Exception):
    """Ray's error for a dead actor."""


class PlayedRay:
    """A fake Ray whose actors are numbers, and whose references resolve only on request."""

    exceptions = SimpleNamespace(RayError=Killed)

    def __init__(self):
        self.numbers, self.done, self.names = itertools.count(), set(), {}

    def remote(self, kind):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self):
        number = next(self.numbers)

        def work(placement):
            self.names[number] = placement.name
            return ("ending", number)

        calls = {"arrive": lambda: ("arrival", number), "work": work}
        return SimpleNamespace(number=number, **{name: SimpleNamespace(remote=call) for name, call in calls.items()})

    def wait(self, sent, num_returns, timeout):
        return [each for each in sent if each in self.done], [each for each in sent if each not in self.done]

    def kill(self, actor):
        self.done.add(("ending", actor.number))

    def get(self, sent):
        raise Killed


@pytest.fixture
def crew(monkeypatch):
    """A pool of two workers with a patience of 30 s; `crew.at(seconds)` supervises it at that time."""
    clock = [1000.0]
    ray = PlayedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(worker_pool, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    spec = experiment("CartPole-v1", "dqn", run_mode="async", num_workers=2, asynchronous={"worker_timeout": 30.0})
    crew = RayWorkerPool(spec, EpisodeRules(spec.environment), 1)
    membership = Membership()
    crew.start(SimpleNamespace(membership=membership, address=("127.0.0.1", 7000)), None)

    def at(seconds):
        clock[0] = 1000.0 + seconds
        return crew.supervise()

    return SimpleNamespace(ray=ray, membership=membership, at=at, names=ray.names)


def test_a_worker_that_has_a_place_and_never_joins_is_replaced(crew, caplog):
    crew.ray.done |= {("arrival", 0), ("arrival", 1)}
    # Workers wait for the compilation, which may take longer than their timeout.
    assert crew.at(100) is None
    crew.membership.join(crew.names[1])
    assert crew.at(129) is None
    assert len(crew.names) == 2
    assert crew.at(131) is None
    assert len(crew.names) == 3
    assert "a worker died and is replaced: it has not made its environment within 30 s" in caplog.text
    # The replacement has its own timeout.
    crew.ray.done.add(("arrival", 2))
    assert (crew.at(140), crew.at(165), len(crew.names)) == (None, None, 3)
    assert (crew.at(171), len(crew.names)) == (None, 4)


def test_a_worker_that_has_no_place_yet_is_waited_for(crew):
    crew.membership.join(crew.names[0])
    assert (crew.at(10), crew.at(100_000)) == (None, None)
    assert len(crew.names) == 2


def test_environments_that_always_hang_end_the_run_with_the_reason(crew):
    for seconds in itertools.count(0, 20):
        crew.ray.done |= {("arrival", number) for number in crew.names}
        if (fault := crew.at(seconds)) is not None:
            break
    assert str(fault) == (
        "workers die faster than they can be replaced; the last one: it has not made its environment within 30 s; "
        "where that is no fault of the environment, raise asynchronous.worker_timeout"
    )
    assert len(crew.names) == 7


@pytest.fixture
def opened(monkeypatch):
    """The host of a learner that has joined a Ray at an address, and its pool; the first node is the learner's."""

    def open_(address, nodes, wanted=None):
        living = [{"NodeManagerAddress": node, "Alive": True, "Resources": {"CPU": 8.0}} for node in nodes]
        gone = {"NodeManagerAddress": "10.0.0.99", "Alive": False, "Resources": {}}
        ray = PlayedRay()
        ray.nodes = lambda: [gone, *living]
        ray.util = SimpleNamespace(get_node_ip_address=lambda: nodes[0])
        monkeypatch.setitem(sys.modules, "ray", ray)
        session = RaySession(address, is_own=False)
        monkeypatch.setattr(
            "steppe.runners.ray.ray_session.ray_session", lambda *_, **__: contextlib.nullcontext(session)
        )
        fields = {"run_mode": "async", "num_workers": 1, "platform": "ray", "ray": {"address": address}}
        spec = experiment("CartPole-v1", "dqn", **fields, asynchronous={"address": wanted})
        crew = RayWorkerPool(spec, EpisodeRules(spec.environment), 1)
        return crew.open(), crew

    return open_


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "10.0.0.1:6379"])
def test_a_learner_listens_at_an_address_that_its_rays_machines_reach(opened, address):
    assert opened(address, ["10.0.0.1", "10.0.0.2"])[0] == "10.0.0.1"
    # Other machines may join the Ray during the run.
    assert opened(address, ["10.0.0.1"])[0] == "10.0.0.1"


def test_a_learner_of_a_loopback_ray_listens_on_loopback(opened):
    assert opened("127.0.0.1:6379", ["127.0.0.1"])[0] == "127.0.0.1"


def test_workers_get_a_reachable_address_of_a_learner_that_listens_everywhere(opened):
    _, crew = opened("127.0.0.1:6379", ["10.0.0.1", "10.0.0.2"], "0.0.0.0:7000")
    crew.start(SimpleNamespace(membership=Membership(), address=("0.0.0.0", 7000)), "token")
    assert crew._plan["address"] == "10.0.0.1:7000"


@pytest.mark.parametrize("wanted", [None, "0.0.0.0:7000"])
def test_a_forwarded_ray_client_needs_the_learners_address(opened, wanted):
    with pytest.raises(UserError, match=r"^the machines of the Ray at ray://127.0.0.1:10001 cannot be told .*; give"):
        opened("ray://127.0.0.1:10001", ["10.0.0.1"], wanted)
    assert opened("ray://127.0.0.1:10001", ["10.0.0.1"], "10.0.0.7:7000")[0] == "10.0.0.7"
