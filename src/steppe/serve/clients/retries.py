"""Retries while an endpoint is away, and never repeats a reward that would then count twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from steppe.serve.clients._base import (
    Client,
    EndpointAccess,
    EndpointAway,
    EndpointFault,
    EpisodeLost,
    ModelDescription,
)
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question

FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0
"""Seconds between two tries, doubled each time."""

Value = TypeVar("Value")


class PlayStopped(Exception):
    """The player was asked to stop while the endpoint was away."""


class EndpointRetries:
    """Retries for all clients of one endpoint; reports once that it is away, and once that it is back."""

    def __init__(
        self,
        access: EndpointAccess,
        seconds: float,
        stop: threading.Event,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._url, self._seconds, self._stop, self._tell = access.url, seconds, stop, tell
        self._lock = threading.Lock()
        self._since: float | None = None
        self.tries = 0
        """How often something was sent again."""

    def call(
        self, attempt: Callable[[], Value], may_repeat: Callable[[EndpointAway], bool] = lambda away: True
    ) -> Value:
        """Calls `attempt` until it succeeds; raises its `EndpointAway` if it must not be repeated."""
        pause, deadline = FIRST_PAUSE, 0.0
        while True:
            try:
                value = attempt()
            except EndpointAway as away:
                self._report(away)
                deadline = deadline or time.monotonic() + self._seconds
                if not may_repeat(away):
                    raise
                wanted = max(pause, away.pause or 0.0)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._end(away) from None
                # Random pauses, so that clients do not all come back at once.
                if self._stop.wait(min(left, wanted * random.uniform(0.5, 1.0))):
                    raise PlayStopped from None
                with self._lock:
                    self.tries += 1
                pause = min(2 * pause, MAX_PAUSE)
            else:
                if self._since is not None:
                    self._report(None)
                return value

    def _report(self, away: EndpointAway | None) -> None:
        with self._lock:
            if away is not None and self._since is None:
                self._since = time.monotonic()
                self._tell(f"the endpoint at {self._url} is away ({away}); trying again for up to {self._seconds:g} s")
            elif away is None and self._since is not None:
                self._tell(f"the endpoint at {self._url} is back after {time.monotonic() - self._since:.1f} s")
                self._since = None

    def _end(self, away: EndpointAway) -> EndpointFault:
        return EndpointFault(
            f"the endpoint at {self._url} was away for {self._seconds:g} s ({away}); start it with: steppe serve, or "
            "give another --url or more --patience"
        )


class RetryingClient:
    """A client that waits while its endpoint is away."""

    def __init__(self, client: Client, patience: EndpointRetries) -> None:
        self._client, self._patience = client, patience
        self._described: ModelDescription | None = None
        self.uncounted = 0
        """Rewards that may be lost: not sent again, or for an episode that the endpoint has forgotten."""

    def describe(self) -> ModelDescription:
        """The server's description, asked for once."""
        if self._described is None:
            self._described = self._patience.call(self._client.describe)
        return self._described

    def answer(self, question: Question) -> PolicyAnswer:
        """The actions for observations [B, ...]."""
        return self._patience.call(lambda: self._client.answer(question))

    def feedback(self, feedback: Feedback) -> None:
        """Sends a reward; if it may have arrived, it is repeated only if the endpoint counts it once."""
        applies_once = self.describe().applies_once
        try:
            self._patience.call(lambda: self._client.feedback(feedback), lambda away: applies_once or not away.was_sent)
        except (EndpointAway, EpisodeLost):
            self.uncounted += 1

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()
