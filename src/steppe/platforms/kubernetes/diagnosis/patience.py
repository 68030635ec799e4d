"""How long trouble may last: runs that are followed, readers, erasers and trial Pods all wait the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.diagnosis.waiting import Trouble, trouble_of

Json = dict[str, Any]
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0


class NotComing(ClusterError):
    """A Pod that there is no use in waiting for, in a sentence."""


class Patience:
    """Believes in trouble that waiting does not cure when it has lasted: a registry may be slow, or away."""

    def __init__(self) -> None:
        self._since: float | None = None

    def ends(self, trouble: str, seconds: float) -> bool:
        """Whether there has been trouble of this kind for so long; no trouble, an empty text, begins anew."""
        now = time.monotonic()
        if not trouble:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= seconds


def watch(kube: Kube, name: str, seconds: float) -> Iterator[tuple[Json, Trouble | None]]:
    """(a Pod as it is now, what is wrong with it), again and again for so long; NotComing where waiting is no use."""
    patience, begin, pause = Patience(), time.monotonic(), FIRST_PAUSE
    while True:
        pod = kube.get("Pod", name)
        if pod is None:
            raise NotComing(f"Pod {name} was deleted by somebody else; try again")
        trouble = trouble_of([pod], [], [])
        yield pod, trouble
        is_late = time.monotonic() - begin > seconds
        if trouble is None:
            patience.ends("", 0.0)
            if is_late:
                raise NotComing(f"Pod {name} has not come so far within {seconds:g} s")
        elif is_late or patience.ends(trouble.sentence if trouble.is_final else "", trouble.seconds):
            raise NotComing(trouble.sentence)
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
