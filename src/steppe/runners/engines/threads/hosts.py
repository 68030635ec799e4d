"""The host environments of all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HostEnvPool:
    """Makes environments for one worker after the other; the first ones already exist, for their spaces."""

    def __init__(self, first: Any, make: Callable[[], Any]) -> None:
        self._made = [first]
        self._make = make
        self._given = 0

    def give(self) -> Any:
        """Returns the environments of the next worker."""
        if self._given == len(self._made):
            self._made.append(self._make())
        self._given += 1
        return self._made[self._given - 1]

    def close(self) -> None:
        """Closes all environments and their processes; may be called again."""
        for envs in self._made:
            envs.close()
