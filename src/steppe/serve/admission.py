"""Who may ask, and how much at once: the same for every protocol of an endpoint."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

from steppe.errors import SteppeError

MOST_CLIENTS = 10_000
"""How many clients' rates are remembered; the one not seen for the longest time is forgotten first."""
SHORT = 1 << 16
"""Bytes of a request that are not counted: `TrafficLimits.concurrent` limits them well enough."""


@dataclass(frozen=True)
class TrafficLimits:
    """What a client, or all of them together, may ask of an endpoint."""

    body_bytes: int = 16 << 20
    """The longest request, also after it is decompressed."""
    total_bytes: int = 256 << 20
    """How long all requests under way may be together, half of it those of one address; short ones always find room."""
    concurrent: int = 1024
    """How many requests may be under way at once."""
    connections: int = 4096
    """How many connections may be open at once."""
    connections_per_address: int | None = None
    """How many of them one address may have, such as a proxy's; None: an eighth."""
    rate: float | None = None
    """How many requests a second one client's address may send in the long run; None sets no limit."""
    request_seconds: float = 30.0
    """How long a request may take to arrive, and an answer to be taken."""
    drain_seconds: float = 30.0
    """How long requests under way may take when the server ends."""

    @property
    def most_of_one_address(self) -> int:
        """How many connections one address may have."""
        return self.connections_per_address or max(1, self.connections // 8)


class RequestRefused(SteppeError):
    """A request that is not taken: `status` is HTTP's word for why; `pause` says after how many seconds it may be."""

    def __init__(self, status: int, message: str, pause: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.pause = pause


def is_local_name(authority: bytes, host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine as only programs on it do, or `host`."""
    text = authority.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return False
    name = name.removesuffix(".")
    if name in (host.lower(), "localhost") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Gate:
    """Lets requests in, one after the other, as long as there is room; used from one thread."""

    def __init__(
        self, limits: TrafficLimits, token: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.under_way = 0
        self.refused = 0
        self.is_draining = False
        """Whether the server is ending: requests are still answered, but nobody is told that it is ready."""
        self._token = None if token is None else token.encode()
        self._clock = clock
        self._calls: dict[str, int] = {}
        """Client -> how many requests that it began have not ended."""
        self._bytes: dict[str, int] = {}
        """Client -> how many bytes its requests under way have."""
        self._rates: dict[str, tuple[float, float]] = {}
        """Client -> (how many more it may send at once, when that was so)."""

    @property
    def needs_token(self) -> bool:
        """Whether a token must be shown."""
        return self._token is not None

    def check_token(self, authorization: bytes | str | None) -> None:
        """Refuses whoever does not show the token, as `Bearer TOKEN` or by itself."""
        if self._token is None:
            return
        if authorization is None:
            raise self._refusal(401, "a token is needed; send it as: Authorization: Bearer TOKEN")
        shown = authorization.encode() if isinstance(authorization, str) else authorization
        if shown[:7].lower() == b"bearer ":
            shown = shown[7:]
        # In constant time, so that no letter of it can be found by measuring.
        if not hmac.compare_digest(shown.strip(), self._token):
            raise self._refusal(401, "the token is not the one this endpoint was given")

    def enter(self, client: str) -> None:
        """Takes a place, which `leave` gives back; refuses where there is none, or this client asks too often."""
        limits = self.limits
        if self.under_way >= limits.concurrent:
            raise self._refusal(
                503, f"{limits.concurrent} requests are under way already; try again in a moment", pause=1
            )
        if limits.rate is not None:
            self._count(client, limits.rate)
        self.under_way += 1

    def leave(self) -> None:
        """Gives a place back."""
        self.under_way -= 1

    def begin(self, client: str) -> None:
        """As `enter`, for a request that is still to arrive; one client may have half of all places in this way."""
        most, calls = max(1, self.limits.concurrent // 2), self._calls.get(client, 0)
        if calls >= most:
            raise self._refusal(503, f"{most} requests of this address are under way already; wait for one", pause=1)
        self.enter(client)
        self._calls[client] = calls + 1

    def end(self, client: str) -> None:
        """Gives the place of a request that was begun back."""
        self.leave()
        self._calls[client] -= 1
        if not self._calls[client]:
            del self._calls[client]

    def take_bytes(self, client: str, size: int) -> None:
        """Takes room for more bytes of a request, which `give_bytes_back` gives back; refuses where there is none."""
        most, own = self.limits.total_bytes, self._bytes.get(client, 0) + size
        if own > most // 2 or sum(self._bytes.values()) + size > most:
            raise self._refusal(
                503, f"more than {most / 1e6:,.0f} MB of requests are under way; try again in a moment", pause=1
            )
        self._bytes[client] = own

    def give_bytes_back(self, client: str, size: int) -> None:
        """Gives the room of a request that is over back."""
        self._bytes[client] -= size
        if not self._bytes[client]:
            del self._bytes[client]

    def _count(self, client: str, rate: float) -> None:
        """Up to a second's worth may come at once."""
        now, most = self._clock(), max(1.0, rate)
        left, since = self._rates.pop(client, (most, now))
        left = min(most, left + (now - since) * rate)
        self._rates[client] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._rates) > MOST_CLIENTS:
            del self._rates[next(iter(self._rates))]
        if left < 1.0:
            pause = max(1, round((1.0 - left) / rate))
            raise self._refusal(429, f"more than {rate:g} requests a second; try again in {pause} s", pause=pause)

    def _refusal(self, status: int, message: str, pause: int | None = None) -> RequestRefused:
        self.refused += 1
        return RequestRefused(status, message, pause)


class RequestMemory:
    """What one request has in memory; ends with its block."""

    def __init__(self, gate: Gate, client: str) -> None:
        self._gate, self._client = gate, client
        self._taken = 0

    def __enter__(self) -> RequestMemory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._gate.give_bytes_back(self._client, self._taken)
            self._taken = 0

    def grow(self, size: int) -> None:
        """Makes room for a request of `size` bytes so far; refuses where there is none."""
        more = size - SHORT - self._taken
        if more > 0:
            self._gate.take_bytes(self._client, more)
            self._taken += more
