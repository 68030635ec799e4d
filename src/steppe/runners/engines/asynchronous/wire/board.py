"""Where the learner posts what its workers need: the task, and the newest policy as it goes over the wire."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from steppe.net.protocol import Message, to_wire
from steppe.runners.engines.asynchronous.learner.inbox import Over
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.spaces import Space

Spaces = tuple[Space, Space]
"""(what is observed, what is done), as the environment has them."""


class Offer(NamedTuple):
    """What a worker that joins is told."""

    task: Task
    form: BatchFormat
    spaces: Spaces


class Board:
    """Written by the learner, read by all connections."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        """Tells one learner from another, also from the one that is resumed in its place."""
        self._change = threading.Condition()
        self._spaces: Spaces | None = None
        self._offer: Offer | None = None
        self._weights: dict[str, Message] = {}
        self._state: Message = {}
        self._was_taken = True
        self._reason: str | None = None

    def tell_spaces(self, spaces: Spaces) -> None:
        """A worker's spaces: the first ones count where the learner knows none."""
        with self._change:
            if self._spaces is None:
                self._spaces = spaces
                self._change.notify_all()

    def wait_for_spaces(self, seconds: float) -> Spaces | None:
        """The spaces once a worker has told them, or None when that takes longer."""
        with self._change:
            self._change.wait_for(lambda: self._spaces is not None or self._reason is not None, seconds)
            return self._spaces

    def offer(self, task: Task, spaces: Spaces) -> None:
        """From now on workers are welcome."""
        with self._change:
            self._spaces, self._offer = spaces, Offer(task, BatchFormat(task, *spaces), spaces)
            self._change.notify_all()

    def wait_for_task(self, seconds: float) -> Offer | None:
        """The task once there is one; None when that takes longer, `Over` when there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._offer is not None or self._reason is not None, seconds)
            self.raise_if_over()
            return self._offer

    @property
    def version(self) -> int:
        """How many updates the posted policy has seen; -1 before the first."""
        return self._state.get("version", -1)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody has taken the posted policy, so that a newer one is worth posting."""
        return self._was_taken

    def post(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """A newer policy, for whoever asks next; its arrays are copied."""
        packed = {name: to_wire(np.asarray(array, np.float32)) for name, array in weights.items()}
        with self._change:
            self._weights, self._was_taken = packed, False
            self._state = self._state | {"version": version}

    def note(self, timestep: int, exploration: Mapping[str, float]) -> None:
        """How far the run is, and how much is to be explored now."""
        with self._change:
            self._state = self._state | {"timestep": timestep, "exploration": dict(exploration)}

    def news(self, has: int, session: str) -> Message:
        """What a worker should know that has the policy of a version from the learner `session`; its weights only where
        they changed."""
        with self._change:
            self.raise_if_over()
            if has == self.version and session == self.name:
                return self._state
            self._was_taken = True
            return self._state | {"policy": self._weights}

    def end(self, reason: str) -> None:
        """There is nothing more to do; may be called again."""
        with self._change:
            self._reason = self._reason or reason
            self._change.notify_all()

    def raise_if_over(self) -> None:
        """`Over` once nothing more is to be done."""
        if self._reason is not None:
            raise Over(self._reason)
