"""A worker's side of the servers, without Ray: pushes, repeated pushes, and the parameters known afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steppe.runners.engines.distributed.exchange import Exchange, ServersLost
from steppe.runners.engines.distributed.parameter_server import ParameterServer, Segment, ShardConfig, fresh_state
from steppe.specs.learning.optimizer import GradientDescent

BORDERS = [0, 2, 5]


class Handle:
    """A fake Ray handle of a server: calls run at once, and the call or its answer may be lost."""

    def __init__(self, size: int) -> None:
        self.server = ParameterServer(ShardConfig([Segment(0, size, GradientDescent(), 1.0)]))
        self.server.restore(fresh_state(np.zeros(size, np.float32), np.zeros(0, np.float32), 0, None))
        self.calls: list[str] = []
        self.fails: str | None = None

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)


class _Method:
    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *arguments: Any) -> Any:
        handle = self._handle
        handle.calls.append(self._name)
        if handle.fails == "before":
            return ConnectionError("gone")
        answer = getattr(handle.server, self._name)(*arguments)
        return ConnectionError("gone") if handle.fails == "after" else answer


def made(*handles: Handle) -> Exchange:
    exchange = Exchange(3, BORDERS, lambda sent, seconds: list(sent), timeout=1.0)
    exchange.connect(handles)
    return exchange


@pytest.fixture
def handles() -> list[Handle]:
    return [Handle(2), Handle(3)]


def gradients(rows: int = 1) -> np.ndarray:
    return np.tile(np.arange(1.0, 6.0, dtype=np.float32), (rows, 1))


def test_shards_travel_as_contiguous_floats(handles):
    exchange = made(*handles)
    exchange.pull()
    exchange.push(np.asfortranarray(gradients(3)), None, exchange.versions)
    sent = [push.gradients for push in exchange._flying.pushes]
    assert [each.shape for each in sent] == [(3, 2), (3, 3)]
    assert all(each.flags.c_contiguous and each.dtype == np.float32 for each in sent)


def test_a_push_reaches_every_server_and_brings_back_the_whole(handles):
    exchange = made(*handles)
    exchange.pull()
    exchange.push(gradients(2), None, exchange.versions)
    settled = exchange.settle()
    assert settled == (2, True, 0.0)
    assert exchange.versions == [2, 2]
    np.testing.assert_allclose(exchange.params, -2 * gradients()[0])
    assert not exchange.is_waiting


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_makes_a_push_count_once(handles, moment):
    exchange = made(*handles)
    exchange.pull()
    handles[1].fails = moment
    exchange.push(gradients(), None, exchange.versions)
    with pytest.raises(ServersLost) as lost:
        exchange.settle()
    assert lost.value.indices == [1]
    assert exchange.is_waiting
    # A replacement has the state of the lost server, which may or may not include this push.
    successor = Handle(3)
    successor.server.restore(handles[1].server.state())
    exchange.connect([handles[0], successor])
    assert exchange.settle().was_applied
    assert handles[0].server.version == successor.server.version == 1
    assert handles[0].calls.count("push") == 1, "who has answered is not asked again"
    np.testing.assert_allclose(exchange.params, -gradients()[0])


def test_versions_of_a_replaced_server_are_forgotten(handles):
    exchange = made(*handles)
    exchange.pull()
    successor = Handle(3)
    successor.server.params += 7.0
    exchange.connect([handles[0], successor])
    exchange.pull()
    np.testing.assert_allclose(exchange.params, [0, 0, 7, 7, 7])


def test_a_pull_that_is_lost_names_the_server(handles):
    handles[0].fails = "before"
    with pytest.raises(ServersLost) as lost:
        made(*handles).pull()
    assert lost.value.indices == [0]


def test_staleness_counts_the_updates_of_others_only(handles):
    mine, other = made(*handles), made(*handles)
    other.worker = 4
    for exchange in (mine, other):
        exchange.pull()
    other.push(gradients(3), None, other.versions)
    other.settle()
    read = mine.versions
    mine.push(gradients(), None, read)
    assert mine.settle().staleness == 3.0
