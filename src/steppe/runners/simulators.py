"""A simulator that stands beside a Pod's own container, and takes its time to start."""

from __future__ import annotations

import time

from steppe.net.sockets import is_loopback
from steppe.runners.pods import is_listening
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.running.connections import RemoteSettings, split_address

PATIENCE = 600.0
"""How many seconds a simulator may take to listen; who acts then finds out by itself that there is none."""
LOOK_SECONDS = 0.5


def wait_for_simulator(environment: EnvironmentSpec, seconds: float = PATIENCE) -> None:
    """Waits until whatever the environment is connected to in this Pod listens; what is elsewhere is not waited for."""
    deadline = time.monotonic() + seconds
    for address in _addresses(environment):
        host, port = split_address(address)
        while is_loopback(host) and not is_listening(host, port, LOOK_SECONDS) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


def _addresses(environment: EnvironmentSpec) -> list[str]:
    # A game of UE4 would take whoever connects for its player.
    if environment.id != "remote":
        return []
    settings = RemoteSettings.model_validate(environment.settings)
    return settings.addresses or [settings.address or ""]
