"""Waiting for a Pod: for how long a problem must last before it counts, the same for runs, readers and trial Pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth, health_of

Json = dict[str, Any]
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0


class PodHopeless(ClusterError):
    """Waiting for a Pod has no use; the text says why."""


class TroubleTimer:
    """Treats a permanent-looking problem as real only after it has lasted for some seconds: a registry may be slow."""

    def __init__(self) -> None:
        self._since: float | None = None

    def has_lasted(self, trouble: str, seconds: float) -> bool:
        """Whether there has been trouble for `seconds`; an empty text means no trouble, and resets the timer."""
        now = time.monotonic()
        if not trouble:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= seconds


def watch(kube: Kube, name: str, seconds: float) -> Iterator[tuple[Json, PodHealth]]:
    """Yields (a Pod, its health) repeatedly for at most `seconds`; PodHopeless once waiting has no use."""
    timer, begin, pause = TroubleTimer(), time.monotonic(), FIRST_PAUSE
    while True:
        pod = kube.get("Pod", name)
        if pod is None:
            raise PodHopeless(f"Pod {name} was deleted by somebody else; try again")
        health = health_of([pod], [], [])
        yield pod, health
        is_late = time.monotonic() - begin > seconds
        if timer.has_lasted(health.trouble, health.seconds) or (is_late and health.phase):
            raise PodHopeless(health.phase)
        if is_late:
            raise PodHopeless(f"Pod {name} is not ready after {seconds:g} s")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
