"""Waiting for a simulator in another container of the Pod."""

from __future__ import annotations

import socket
import threading
import time

from steppe.runners.simulators import wait_for_simulator
from steppe.specs.environment import EnvironmentSpec


def connected_to(address: str) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"type": "remote", "address": address})


def test_it_is_waited_for_until_it_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        came = []
        waiting = threading.Thread(target=lambda: (wait_for_simulator(connected_to(address), 60), came.append(1)))
        waiting.start()
        time.sleep(1.0)
        assert not came
        sock.listen()
        waiting.join(30)
        assert came


def test_one_that_never_comes_is_left_to_the_run():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        began = time.monotonic()
        wait_for_simulator(connected_to(f"127.0.0.1:{sock.getsockname()[1]}"), seconds=1.0)
        assert time.monotonic() - began >= 1.0


def test_simulators_on_other_machines_are_not_waited_for():
    began = time.monotonic()
    wait_for_simulator(connected_to("192.0.2.1:5555"), seconds=60)
    wait_for_simulator(EnvironmentSpec.model_validate("CartPole-v1"), seconds=60)
    assert time.monotonic() - began < 30
