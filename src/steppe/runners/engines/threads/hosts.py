"""Host environments of all workers: made one worker after the other, closed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HostEnvPool:
    """What `make` makes, once for each worker; the first were made already, to see what the spaces are."""

    def __init__(self, first: Any, make: Callable[[], Any]) -> None:
        self._made = [first]
        self._make = make
        self._given = 0

    def give(self) -> Any:
        """The environments of the next worker."""
        if self._given == len(self._made):
            self._made.append(self._make())
        self._given += 1
        return self._made[self._given - 1]

    def close(self) -> None:
        """Ends them and their processes; may be called again."""
        for envs in self._made:
            envs.close()
