"""The board on which the learner's thread posts the task and the encoded policy for the threads that serve workers."""

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
"""(observation space, action space) of the environment."""


class Offer(NamedTuple):
    """The task for workers that join."""

    task: Task
    form: BatchFormat
    spaces: Spaces


class Board:
    """The posted task, policy and spaces: written by the learner, read by all sessions."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        """Identifies this learner; one that is resumed in its place has another name."""
        self._change = threading.Condition()
        self._spaces: Spaces | None = None
        self._offer: Offer | None = None
        self._weights: dict[str, Message] = {}
        self._state: Message = {}
        self._was_taken = True
        self._reason: str | None = None

    def tell_spaces(self, spaces: Spaces) -> None:
        """Sets the spaces from a worker's report, if they are not known yet."""
        with self._change:
            if self._spaces is None:
                self._spaces = spaces
                self._change.notify_all()

    def wait_for_spaces(self, seconds: float) -> Spaces | None:
        """The spaces once they are known; None after `seconds`."""
        with self._change:
            self._change.wait_for(lambda: self._spaces is not None or self._reason is not None, seconds)
            return self._spaces

    def offer(self, task: Task, spaces: Spaces) -> None:
        """Sets the task, so that workers may join."""
        with self._change:
            self._spaces, self._offer = spaces, Offer(task, BatchFormat(task, *spaces), spaces)
            self._change.notify_all()

    def wait_for_task(self, seconds: float) -> Offer | None:
        """The task once there is one; None after `seconds`; raises `Over` if there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._offer is not None or self._reason is not None, seconds)
            self.raise_if_over()
            return self._offer

    @property
    def version(self) -> int:
        """The number of updates of the posted policy; -1 before the first."""
        return self._state.get("version", -1)

    @property
    def is_wanted(self) -> bool:
        """Whether a worker has fetched the posted policy, so that a newer one is worth encoding."""
        return self._was_taken

    def post(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Posts a newer policy; its arrays are copied."""
        packed = {name: to_wire(np.asarray(array, np.float32)) for name, array in weights.items()}
        with self._change:
            self._weights, self._was_taken = packed, False
            self._state = self._state | {"version": version}

    def note(self, timestep: int, exploration: Mapping[str, float]) -> None:
        """Posts the timestep and the current exploration."""
        with self._change:
            self._state = self._state | {"timestep": timestep, "exploration": dict(exploration)}

    def news(self, has: int, session: str) -> Message:
        """The state, for a worker with version `has` of the learner `session`; weights only if they differ."""
        with self._change:
            self.raise_if_over()
            if has == self.version and session == self.name:
                return self._state
            self._was_taken = True
            return self._state | {"policy": self._weights}

    def end(self, reason: str) -> None:
        """Ends the run for all workers; may be called again."""
        with self._change:
            self._reason = self._reason or reason
            self._change.notify_all()

    def raise_if_over(self) -> None:
        """Raises `Over` once the run has ended."""
        if self._reason is not None:
            raise Over(self._reason)
