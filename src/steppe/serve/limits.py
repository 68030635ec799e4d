"""The limits of an endpoint and of its server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Limits of an endpoint's memory, and the intervals of its background tasks."""

    episodes: int = 10_000
    """Most open episodes; beyond that, the episodes silent for longest expire."""
    idle_seconds: float = 3600.0
    """An episode that is silent for longer expires."""
    queue: int = 100_000
    """Most records that wait for the ledger; further decisions are dropped and counted."""
    watch_seconds: float | None = None
    """How often to look for newer policies; None: never."""
    rows: int = 10_000
    """Most observations in one question: while it is answered, all others wait."""
    episode_bytes: int = 256_000_000
    """Most memory of all open episodes together; beyond that, the episodes silent for longest expire."""
    keep_days: float | None = None
    """Days for which a finished decision and its rewards are kept; None: for ever."""


@dataclass(frozen=True)
class TrafficLimits:
    """What one client, and all clients together, may ask of an endpoint."""

    body_bytes: int = 16 << 20
    """Longest request, before and after decompression."""
    total_bytes: int = 256 << 20
    """Longest total of all requests in progress, half of it for one address; short requests are not counted."""
    concurrent: int = 1024
    """Most requests in progress."""
    connections: int = 4096
    """Most open connections."""
    connections_per_address: int | None = None
    """Most connections of one address, such as a proxy's; None: an eighth of `connections`."""
    rate: float | None = None
    """Requests a second that one address may send in the long run; None: no limit."""
    request_seconds: float = 30.0
    """Longest time for a request to arrive, and for an answer to be read by its client."""
    drain_seconds: float = 30.0
    """Longest time for requests in progress once the server is stopping."""

    @property
    def most_of_one_address(self) -> int:
        """Most connections of one address."""
        return self.connections_per_address or max(1, self.connections // 8)
