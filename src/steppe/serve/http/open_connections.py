"""Counts open connections, and chooses which to cut off when there are too many.

A connection is unproven until a whole request on it was admitted. Unproven connections share half of all places. If
places run out, the oldest unproven connection of the address with most of them is cut off, so that an address
with thousands of silent connections loses only its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from steppe.serve.limits import TrafficLimits

LOG_SECONDS = 10.0
"""Least seconds between two log lines about refused connections."""

log = logging.getLogger(__name__)


class OpenConnection(Protocol):
    """A connection that can be cut off."""

    def cut(self, message: str) -> None:
        """Closes the connection with one sentence."""


class OpenConnections:
    """The connections of one server; used from its event loop."""

    def __init__(self, limits: TrafficLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._max = limits.connections
        self._max_of_one = limits.most_of_one_address
        self._max_unproven = max(1, limits.connections // 2)
        self._clock = clock
        self._addresses: dict[OpenConnection, str] = {}
        self._counts: dict[str, int] = {}
        self._unproven: dict[str, dict[OpenConnection, None]] = {}
        """Address -> its unproven connections, oldest first."""
        self._unproven_count = 0
        self._turned_away = 0
        self._logged = float("-inf")

    def add(self, connection: OpenConnection, address: str) -> str | None:
        """Adds a connection; returns the reason if there is no place for it."""
        if self._counts.get(address, 0) >= self._max_of_one:
            if not self._cut_one_of(address):
                self._note(address)
                return f"this address has {self._max_of_one} connections already; close one of them"
        elif (len(self._addresses) >= self._max or self._unproven_count >= self._max_unproven) and not self._cut_one():
            self._note(address)
            return "there are too many connections; try again in a moment"
        self._addresses[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self._unproven.setdefault(address, {})[connection] = None
        self._unproven_count += 1
        return None

    def trust(self, connection: OpenConnection) -> None:
        """Marks a connection as proven: one of its requests was admitted."""
        address = self._addresses.get(connection)
        if address is not None:
            self._prove(connection, address)

    def remove(self, connection: OpenConnection) -> None:
        """Forgets a closed connection, which may be unknown."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._prove(connection, address)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def _prove(self, connection: OpenConnection, address: str) -> None:
        unproven = self._unproven.get(address, {})
        if connection in unproven:
            del unproven[connection]
            self._unproven_count -= 1
            if not unproven:
                del self._unproven[address]

    def _cut_one(self) -> bool:
        """Cuts off an unproven connection of the address with most of them; False if there is none."""
        if not self._unproven:
            return False
        return self._cut_one_of(max(self._unproven, key=lambda address: len(self._unproven[address])))

    def _cut_one_of(self, address: str) -> bool:
        unproven = self._unproven.get(address)
        if not unproven:
            return False
        oldest = next(iter(unproven))
        self.remove(oldest)
        self._note(address)
        oldest.cut("there are too many connections, and no request came on this one; try again in a moment")
        return True

    def _note(self, address: str) -> None:
        """Counts a refused connection, and logs the count now and then."""
        self._turned_away += 1
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            log.warning(
                "%d connections were turned away, the last from %s: there may be %d, and %d of one address",
                self._turned_away,
                address,
                self._max,
                self._max_of_one,
            )
            self._turned_away, self._logged = 0, now
