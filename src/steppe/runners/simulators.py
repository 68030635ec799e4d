"""Waits for a simulator in a container of the same Pod, which may be slow to start."""

from __future__ import annotations

import time

from steppe.net.sockets import is_loopback
from steppe.runners.pods import is_listening
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.running.connections import RemoteSettings, split_address

PATIENCE = 600.0
"""How many seconds a simulator may take to listen; after that connecting to it fails."""
LOOK_SECONDS = 0.5


def wait_for_simulator(environment: EnvironmentSpec, seconds: float = PATIENCE) -> None:
    """Waits until the simulators at loopback addresses listen; others are not waited for."""
    deadline = time.monotonic() + seconds
    for address in _addresses(environment):
        host, port = split_address(address)
        while is_loopback(host) and not is_listening(host, port, LOOK_SECONDS) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


def _addresses(environment: EnvironmentSpec) -> list[str]:
    # A UE4 game would take this connection for its player.
    if environment.id != "remote":
        return []
    settings = RemoteSettings.model_validate(environment.settings)
    return settings.addresses or [settings.address or ""]
