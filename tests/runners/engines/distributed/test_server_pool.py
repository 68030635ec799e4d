"""Lost, slow and lagging servers, with servers in this process."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from one_process_ray import OneProcessRay

from steppe.errors import SteppeError
from steppe.runners.engines.distributed import server_pool as module
from steppe.runners.engines.distributed.parameter_server import Push, Segment, ShardConfig, fresh_state
from steppe.runners.engines.distributed.server_pool import ServerPool
from steppe.specs.learning.optimizer import GradientDescent

TIMEOUT = 60.0


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> OneProcessRay:
    monkeypatch.setattr(module, "die_with_parent", lambda: None)
    return OneProcessRay()


def made(ray: OneProcessRay, **config: Any) -> ServerPool:
    """Two servers of two parameters each."""
    configs = [ShardConfig([Segment(0, 2, GradientDescent(), 1.0)], **config)] * 2
    states = [fresh_state(np.zeros(2, np.float32), np.zeros(2, np.float32), 0, None) for _ in configs]
    return ServerPool(ray, configs, states, TIMEOUT)


def push(servers: ServerPool, sequence: int, indices: tuple[int, ...] = (0, 1)) -> None:
    for index in indices:
        servers.handles[index].push.remote(Push(0, sequence, 0, np.ones((1, 2), np.float32)))


def copy(servers: ServerPool, clock: Clock) -> None:
    """Lets time pass until copies are requested and received."""
    clock.now += 2 * module.COPY_SECONDS
    servers.check()
    servers.check()


def versions(servers: ServerPool) -> list[int]:
    return [answer.version for answer in servers.pull()]


def test_another_server_takes_over_the_copy_and_asks_for_no_room(ray, clock, caplog):
    servers = made(ray)
    push(servers, 1)
    copy(servers, clock)
    push(servers, 2)
    ray.kill(servers.handles[1])
    with caplog.at_level(logging.WARNING):
        servers.replace_lost([0, 1])
    assert "parameter server 1 was lost; another one goes on from update 1" in caplog.text
    assert not servers.are_there, "no worker is to call it before it knows anything"
    servers.check()
    assert servers.are_there
    assert versions(servers) == [2, 1]
    assert ray.cpus == [module.CPUS, module.CPUS, 0.0]


def test_the_copy_replaces_a_server_without_a_machine(ray, clock, caplog):
    servers = made(ray)
    push(servers, 1)
    copy(servers, clock)
    push(servers, 2)
    ray.has_machines = False
    ray.kill(servers.handles[1])
    began = clock.now
    with caplog.at_level(logging.WARNING):
        assert versions(servers) == [2, 1]
        assert [state["counters"][0] for state in servers.states()] == [2, 1]
        assert servers.step_together(1, [0]) == 2
        np.testing.assert_array_equal(servers.pull()[1].params, [-1.0, -1.0])
        servers.replace_lost([1])
        assert "all workers wait" not in caplog.text
        for _ in range(3):
            clock.now += TIMEOUT
            servers.check()
    assert clock.now == began + 3 * TIMEOUT
    assert not servers.are_there
    assert caplog.text.count("all workers wait for parameter server 1, which has not started yet") == 1
    assert caplog.text.count("was lost") == 1
    ray.has_machines = True
    clock.now += 8 * TIMEOUT
    servers.check()
    servers.check()
    assert servers.are_there, "what never started is given up at last, and another one is started"


def test_a_lack_of_machines_is_no_loss_however_long_it_lasts(ray, clock):
    servers = made(ray)
    ray.has_machines = False
    ray.kill(servers.handles[1])
    servers.replace_lost([1])
    for _ in range(2 * module.MOST_LOSSES):
        clock.now += 11 * TIMEOUT
        servers.check()
    assert not servers.are_there
    ray.has_machines = True
    clock.now += 11 * TIMEOUT
    servers.check()
    servers.check()
    assert servers.are_there


def test_a_copy_that_was_asked_for_before_a_checkpoint_does_not_take_its_place(ray, clock):
    servers = made(ray)
    push(servers, 1)
    clock.now += 2 * module.COPY_SECONDS
    servers.check()
    push(servers, 2)
    assert [state["counters"][0] for state in servers.states()] == [2, 2]
    servers.check()
    ray.kill(servers.handles[1])
    servers.replace_lost([1])
    servers.check()
    assert versions(servers) == [2, 2]


def test_servers_lost_without_updates_in_between_end_the_run_even_if_one_is_behind(ray, clock):
    servers = made(ray)
    push(servers, 1)
    copy(servers, clock)
    push(servers, 2, (0,))
    copy(servers, clock)

    def lose() -> None:
        ray.kill(servers.handles[1])
        servers.replace_lost([1])
        servers.check()
        copy(servers, clock)

    for _ in range(module.MOST_LOSSES):
        lose()
    with pytest.raises(SteppeError, match="parameter servers are lost faster than they can be replaced"):
        lose()


def test_updates_make_up_for_losses(ray, clock):
    servers = made(ray)
    for sequence in range(2 * module.MOST_LOSSES):
        push(servers, sequence + 1)
        copy(servers, clock)
        ray.kill(servers.handles[1])
        servers.replace_lost([1])
        servers.check()
    assert versions(servers) == [2 * module.MOST_LOSSES] * 2


def test_at_a_checkpoint_a_server_that_is_behind_catches_up_so_that_targets_move_together(ray, clock):
    servers = made(ray, target_sync_frequency=4, target_update_weight=1.0)
    push(servers, 1)
    copy(servers, clock)
    for sequence in range(2, 6):
        push(servers, sequence)
    ray.kill(servers.handles[1])
    servers.replace_lost([1])
    servers.check()
    assert versions(servers) == [5, 1]
    states = servers.states()
    assert [state["counters"][0] for state in states] == [5, 5]
    # The other server's targets moved at update 4.
    assert [state["target"].tolist() for state in states] == [[-4.0, -4.0], [-1.0, -1.0]]
    for sequence in range(6, 9):
        push(servers, sequence)
    assert [answer.target_version for answer in servers.pull()] == [8, 8]
