"""Servers that die, connections that break in the middle of a message, learners that vanish."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from processes import wait_until
from servers import Line, ServerProcess, frame, scripted, serving, stepped

from steppe.envs._base import EpisodesCut
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, UserError
from steppe.net import backoff
from steppe.specs.environment import EnvironmentSpec

NOTHING = np.zeros(2, int)


def remote(*addresses: str, num_envs: int = 2, **settings: Any) -> GymnasiumEnvs:
    return GymnasiumEnvs(EnvironmentSpec(id="remote", settings={"addresses": list(addresses), **settings}), num_envs)


@pytest.fixture
def processes() -> Iterator[list[ServerProcess]]:
    started: list[ServerProcess] = []
    yield started
    for process in started:
        process.kill()


def test_a_restarted_server_costs_only_the_current_episodes(
    processes: list[ServerProcess],
) -> None:
    processes.append(ServerProcess("steppe_toys:Counter", length=9))
    with remote(processes[0].address) as envs:
        envs.reset(0)
        for _ in range(3):
            last = envs.step(np.array([1, 2]))
        np.testing.assert_array_equal(last.observations, [[3, 1]] * 2)
        processes.pop().kill()
        processes.append(ServerProcess("steppe_toys:Counter", int(envs._stepper._links[0].address[10:]), length=9))
        with pytest.raises(EpisodesCut, match=r"its connection broke at step 4 \(.*\) and was made again") as cut:
            envs.step(np.array([3, 4]))
        np.testing.assert_array_equal(cut.value.observations, [[0, 1]] * 2)
        # The timestep before is complete, and the learner marks it as truncated.
        np.testing.assert_array_equal(last.next_observations, [[3, 1]] * 2)
        step = envs.step(np.array([3, 4]))
        np.testing.assert_array_equal(step.observations, [[1, 1]] * 2)
        assert step.rewards.tolist() == [3, 4]


def test_a_server_that_stays_away_ends_the_run_with_one_sentence(processes: list[ServerProcess]) -> None:
    processes.append(ServerProcess("steppe_toys:Counter"))
    address = processes[0].address
    with remote(address, reconnect=0.3) as envs:
        envs.reset(0)
        envs.step(NOTHING)
        processes.pop().kill()
        with pytest.raises(EnvironmentFault) as caught:
            envs.step(NOTHING)
    assert not isinstance(caught.value, EpisodesCut)
    assert str(caught.value) == (
        f'environment "steppe_toys:Counter" at {address}: its connection broke at step 2 and could not be made again '
        "within 0.3 s (connection refused); start its server, then resume from the last checkpoint"
    )


def test_an_environment_that_ends_its_server_is_reported_as_a_lost_server(processes: list[ServerProcess]) -> None:
    processes.append(ServerProcess("steppe_toys:Counter", fault="exit", at=2))
    address = processes[0].address
    with remote(address, reconnect=0.1) as envs:
        envs.reset(0)
        envs.step(NOTHING)
        with pytest.raises(EnvironmentFault, match=r"broke at step 2 and could not be made again within 0.1 s"):
            envs.step(NOTHING)


@pytest.mark.parametrize(
    "part", [0, 2, 4, 30, -1], ids=["nothing", "half a length", "a length", "a part", "almost all"]
)
def test_an_incomplete_answer_is_discarded(part: int) -> None:
    seeds = []

    def breaks_off(line: Line) -> None:
        line.welcome(2)
        seeds.append(line.begin([[1, 0], [2, 0]])["seed"])
        line.step([[3, 0], [4, 0]], rewards=[5, 6])
        line.read()
        line.sock.sendall(frame(stepped([[7, 7], [8, 8]], rewards=[9, 9]))[:part])

    def goes_on(line: Line) -> None:
        line.welcome(2)
        seeds.append(line.begin([[10, 0], [20, 0]])["seed"])
        line.step([[30, 0], [40, 0]], rewards=[50, 60])

    with scripted(breaks_off, goes_on) as address, remote(address) as envs:
        envs.reset(7)
        assert envs.step(NOTHING).rewards.tolist() == [5, 6]
        with pytest.raises(EpisodesCut) as cut:
            envs.step(NOTHING)
        np.testing.assert_array_equal(cut.value.observations, [[10, 0], [20, 0]])
        step = envs.step(NOTHING)
        np.testing.assert_array_equal(step.next_observations, [[30, 0], [40, 0]])
        assert step.rewards.tolist() == [50, 60]
    assert seeds[0] == 7
    assert seeds[1] != 7


def test_a_connection_that_breaks_before_the_first_observation_costs_nothing() -> None:
    def breaks_off(line: Line) -> None:
        line.welcome(2)
        line.read()

    def goes_on(line: Line) -> None:
        line.welcome(2)
        line.begin([[1, 0], [2, 0]])

    with scripted(breaks_off, breaks_off, goes_on) as address, remote(address) as envs:
        np.testing.assert_array_equal(envs.reset(7), [[1, 0], [2, 0]])


def test_if_one_of_several_servers_is_lost_all_episodes_restart() -> None:
    def stays(line: Line) -> None:
        line.welcome(1)
        line.begin([[1, 0]])
        line.step([[2, 0]])
        line.read()
        line.write(stepped([[3, 0]]))

    def breaks_off(line: Line) -> None:
        line.welcome(1)
        line.begin([[1, 1]])
        line.step([[2, 1]])
        line.read()

    def again(number: int) -> Any:
        def script(line: Line) -> None:
            line.welcome(1)
            line.begin([[10, number]])
            line.step([[11, number]])

        return script

    with (
        scripted(stays, again(0)) as one,
        scripted(breaks_off, again(1)) as other,
        remote(one, other) as envs,
    ):
        envs.reset(0)
        envs.step(NOTHING)
        with pytest.raises(EpisodesCut, match=f'"Scripted" at {other}: its connection broke') as cut:
            envs.step(NOTHING)
        np.testing.assert_array_equal(cut.value.observations, [[10, 0], [10, 1]])
        np.testing.assert_array_equal(envs.step(NOTHING).observations, [[11, 0], [11, 1]])


def test_a_server_that_is_temporarily_full_is_asked_again() -> None:
    """Its old connection may not be cleared away yet."""

    def breaks_off(line: Line) -> None:
        line.welcome(2)
        line.begin([[1, 0], [2, 0]])
        line.read()

    def is_full(line: Line) -> None:
        line.read()
        line.write({"op": "welcome", "version": 1, "server": "x", "environment": "Scripted"})
        line.read()
        line.write({"op": "error", "kind": "busy", "message": "2 of at most 2 are in use"})

    def goes_on(line: Line) -> None:
        line.welcome(2)
        line.begin([[3, 0], [4, 0]])

    with scripted(breaks_off, is_full, goes_on) as address, remote(address) as envs:
        envs.reset(0)
        with pytest.raises(EpisodesCut) as cut:
            envs.step(NOTHING)
        np.testing.assert_array_equal(cut.value.observations, [[3, 0], [4, 0]])


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([{"op": "error", "kind": "token", "message": "it is another one"}], "refuses the token: it is another one"),
        ([{"op": "error", "kind": "version", "message": "", "version": 9}], "speaks version 9 of the protocol"),
    ],
)
def test_a_server_that_came_back_with_another_protocol_is_not_asked_twice(answers: list, sentence: str) -> None:
    def breaks_off(line: Line) -> None:
        line.welcome(2)
        line.begin([[1, 0], [2, 0]])
        line.read()

    def refuses(line: Line) -> None:
        for answer in answers:
            line.read()
            line.write(answer)

    with scripted(breaks_off, refuses) as address, remote(address) as envs:
        envs.reset(0)
        with pytest.raises(UserError, match=sentence):
            envs.step(NOTHING)


def test_a_server_that_came_back_with_other_spaces_is_refused() -> None:
    def breaks_off(line: Line) -> None:
        line.welcome(2)
        line.begin([[1, 0], [2, 0]])
        line.read()

    def differs(line: Line) -> None:
        line.welcome(2, action_space={"type": "discrete", "n": 3, "start": 0})
        line.read()

    with scripted(breaks_off, differs) as address, remote(address) as envs:
        envs.reset(0)
        with pytest.raises(UserError, match="has other spaces or time limits than before it was lost"):
            envs.step(NOTHING)


def test_pauses_between_tries_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        def __init__(self) -> None:
            self.now, self.pauses = 1000.0, []

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.pauses.append(round(seconds, 3))
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(backoff, "time", clock)
    monkeypatch.setattr(backoff.random, "uniform", lambda low, high: high)

    def breaks_off(line: Line) -> None:
        line.welcome(2)
        line.begin([[1, 0], [2, 0]])
        line.read()

    with scripted(breaks_off) as address, remote(address, reconnect=20) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match="could not be made again within 20 s"):
            envs.step(NOTHING)
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 3.7]


@pytest.mark.parametrize(
    "last", [b"", b"\0\0\0", b"\0\0\0\x40\x81\xa2op"], ids=["between", "in a length", "in a message"]
)
def test_the_environments_of_a_vanished_learner_are_freed(last: bytes) -> None:
    with serving("CartPole-v1", max_envs=3) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            line = Line(sock)
            line.write({"op": "hello", "protocol": "steppe-env", "version": 1})
            line.read()
            line.write({"op": "make", "count": 3, "max_timesteps": None, "repeat": 1})
            assert line.read()["op"] == "made"
            with pytest.raises(UserError, match="is full"):
                remote(address, num_envs=1)
            sock.sendall(last)

        def comes_in() -> bool:
            try:
                remote(address, num_envs=3).close()
            except UserError:
                return False
            return True

        wait_until(comes_in, "the places are free again")


def test_garbage_from_other_clients_does_not_disturb_training() -> None:
    rng = np.random.default_rng(0)
    with serving("CartPole-v1") as address, remote(address) as envs:
        envs.reset(0)
        host, port = address.split(":")
        for size in rng.integers(0, 300, 60):
            noise = rng.bytes(int(size))
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                # Half of it has the header of a frame of valid length.
                sock.sendall(len(noise).to_bytes(4, "big") + noise if size % 2 else noise)
            np.testing.assert_array_equal(envs.step(NOTHING).rewards, 1.0)
