"""Admission of requests: token, rate and memory limits, the same for every protocol."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable

from steppe.errors import SteppeError
from steppe.serve.limits import TrafficLimits

MAX_CLIENTS = 10_000
"""Most clients whose rates are remembered; beyond that, the one not seen for longest is forgotten."""
SHORT = 1 << 16
"""Bytes of each request that are not counted, since `TrafficLimits.concurrent` limits them well enough."""


class RequestRefused(SteppeError):
    """A request that was not admitted; `status` is the HTTP status, `pause` the seconds after which to try again."""

    def __init__(self, status: int, message: str, pause: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.pause = pause


def is_local_name(authority: bytes, host: str) -> bool:
    """Whether a Host header, with or without a port, is `host` or a name that only programs on this machine use."""
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
    """Admits requests within the limits; used from one thread."""

    def __init__(
        self, limits: TrafficLimits, token: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.under_way = 0
        self.refused = 0
        self.is_draining = False
        """Whether the server is stopping: it still answers requests, but no longer says that it is ready."""
        self._token = None if token is None else token.encode()
        self._clock = clock
        self._calls: dict[str, int] = {}
        """Client -> number of its unfinished requests."""
        self._bytes: dict[str, int] = {}
        """Client -> bytes of its requests in progress."""
        self._rates: dict[str, tuple[float, float]] = {}
        """Client -> (requests it may still send at once, time of that count): a token bucket."""

    @property
    def needs_token(self) -> bool:
        """Whether requests must show a token."""
        return self._token is not None

    def check_token(self, authorization: bytes | str | None) -> None:
        """Refuses a request without the token, which is shown as `Bearer TOKEN` or by itself."""
        if self._token is None:
            return
        if authorization is None:
            raise self._refusal(401, "a token is needed; send it as: Authorization: Bearer TOKEN")
        shown = authorization.encode() if isinstance(authorization, str) else authorization
        if shown[:7].lower() == b"bearer ":
            shown = shown[7:]
        # Compared in constant time, so that measuring reveals no letter of it.
        if not hmac.compare_digest(shown.strip(), self._token):
            raise self._refusal(401, "the token is not the one this endpoint was given")

    def enter(self, client: str) -> None:
        """Admits a request, until `leave`; refuses it if too many are in progress or this client asks too often."""
        limits = self.limits
        if self.under_way >= limits.concurrent:
            raise self._refusal(
                503, f"{limits.concurrent} requests are already in progress; try again in a moment", pause=1
            )
        if limits.rate is not None:
            self._count(client, limits.rate)
        self.under_way += 1

    def leave(self) -> None:
        """Ends a request that `enter` admitted."""
        self.under_way -= 1

    def begin(self, client: str) -> None:
        """Like `enter`, for a request that has yet to arrive; one client may have half of all such requests."""
        most, calls = max(1, self.limits.concurrent // 2), self._calls.get(client, 0)
        if calls >= most:
            raise self._refusal(
                503, f"{most} requests of this address are already in progress; wait for one to end", pause=1
            )
        self.enter(client)
        self._calls[client] = calls + 1

    def end(self, client: str) -> None:
        """Ends a request that `begin` admitted."""
        self.leave()
        self._calls[client] -= 1
        if not self._calls[client]:
            del self._calls[client]

    def take_bytes(self, client: str, size: int) -> None:
        """Reserves memory for bytes of a request, until `give_bytes_back`; refuses if there is not enough."""
        most, own = self.limits.total_bytes, self._bytes.get(client, 0) + size
        if own > most // 2 or sum(self._bytes.values()) + size > most:
            raise self._refusal(
                503, f"more than {most / 1e6:,.0f} MB of requests are in progress; try again in a moment", pause=1
            )
        self._bytes[client] = own

    def give_bytes_back(self, client: str, size: int) -> None:
        """Frees memory that `take_bytes` reserved."""
        self._bytes[client] -= size
        if not self._bytes[client]:
            del self._bytes[client]

    def _count(self, client: str, rate: float) -> None:
        """Token bucket: up to the requests of one second may come at once."""
        now, most = self._clock(), max(1.0, rate)
        left, since = self._rates.pop(client, (most, now))
        left = min(most, left + (now - since) * rate)
        self._rates[client] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._rates) > MAX_CLIENTS:
            del self._rates[next(iter(self._rates))]
        if left < 1.0:
            pause = max(1, round((1.0 - left) / rate))
            raise self._refusal(429, f"more than {rate:g} requests a second; try again in {pause} s", pause=pause)

    def _refusal(self, status: int, message: str, pause: int | None = None) -> RequestRefused:
        self.refused += 1
        return RequestRefused(status, message, pause)


class RequestMemory:
    """The memory of one request, reserved as it grows and freed at the end of the block."""

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
        """Reserves memory for a request of `size` bytes so far; refuses it if there is not enough."""
        more = size - SHORT - self._taken
        if more > 0:
            self._gate.take_bytes(self._client, more)
            self._taken += more
