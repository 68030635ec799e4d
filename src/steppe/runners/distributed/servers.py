"""The driver's side of the parameter servers: copies of what they know, and who steps in for a lost one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steppe.errors import SteppeError, UserError
from steppe.runners.distributed.server import Answer, Duty, ParameterServer, State
from steppe.runners.distributed.worker import received
from steppe.runners.ray_session import die_with_parent

CPUS = 0.25
"""What a server is counted as: it works only when something arrives."""
COPY_SECONDS = 1.0
"""How old the driver's copy of a shard may become; a large one older, so that copying costs little."""
COPIED_BYTES_PER_SECOND = 10e6
MOST_LOSSES = 20
"""How many servers may be lost without an update in between before the run gives up."""

log = logging.getLogger(__name__)


@dataclass
class _Place:
    """One shard."""

    duty: Duty
    actor: Any
    copy: State
    """What the server knew not long ago: what another one begins with, should it be lost."""
    copied: float = 0.0
    """When that was asked for."""
    asked: Any = None
    """A newer copy that is on its way."""


class ParameterServerActor(ParameterServer):
    """In a process of its own, which ends with the Ray that started it."""

    def __init__(self, duty: Duty) -> None:
        die_with_parent()
        super().__init__(duty)


class Servers:
    """All shards together."""

    def __init__(
        self,
        ray: Any,
        duties: Sequence[Duty],
        states: Sequence[State],
        timeout: float,
        room: Mapping[str, float] | None = None,
    ) -> None:
        """`room` is what each server asks of Ray beside CPUs."""
        self._ray, self._timeout, self._room = ray, timeout, dict(room or {})
        self._losses, self._version = 0, 0
        now = time.monotonic()
        self._places = [_Place(duty, self._made(duty), state, now) for duty, state in zip(duties, states, strict=True)]
        restored = [place.actor.restore.remote(place.copy) for place in self._places]
        ready, _ = ray.wait(restored, num_returns=len(restored), timeout=10 * timeout)
        if len(ready) < len(restored):
            raise UserError(
                f"Ray has started {len(ready)} of {len(restored)} parameter servers, which take {CPUS:g} CPUs each, in "
                f"{10 * timeout:g} s; free some CPUs of the Ray cluster, or lower num_parameter_servers"
            )
        for place, answer in zip(self._places, received(ray, restored, timeout), strict=True):
            if isinstance(answer, Exception):
                self._replace(place)

    @property
    def handles(self) -> list[Any]:
        """What workers call."""
        return [place.actor for place in self._places]

    def copy_now_and_then(self) -> None:
        """Takes in copies that have arrived, and asks for new ones; waits for nothing."""
        now = time.monotonic()
        for place in self._places:
            if place.asked is None:
                weight = sum(array.nbytes for array in place.copy.values()) / COPIED_BYTES_PER_SECOND
                if now - place.copied > max(COPY_SECONDS, weight):
                    place.asked, place.copied = place.actor.state.remote(), now
            elif self._ray.wait([place.asked], timeout=0)[0]:
                asked, place.asked = place.asked, None
                (answer,) = received(self._ray, [asked], self._timeout)
                if isinstance(answer, Exception):
                    self._replace(place)
                else:
                    place.copy = answer
                    self._note_progress(int(answer["counters"][0]))
            elif now - place.copied > self._timeout:
                self._replace(place)

    def mend(self, indices: Sequence[int]) -> None:
        """Replaces those of the servers that do not answer any more."""
        for index in indices:
            place = self._places[index]
            (answer,) = received(self._ray, [place.actor.pull.remote(-1, -1)], min(self._timeout, 5.0))
            if isinstance(answer, Exception):
                self._replace(place)

    def states(self) -> list[State]:
        """What all of them know now; asked for while no worker pushes, it is what they knew at one moment."""
        for place, state in zip(self._places, self._asked("state"), strict=True):
            place.copy, place.copied = state, time.monotonic()
        return [place.copy for place in self._places]

    def pull(self) -> list[Answer]:
        """The newest parameters, shard by shard."""
        return self._asked("pull", -1, -1)

    def step_together(self, number: int, workers: Sequence[int]) -> int:
        """Lets all of them step with what these workers have sent; how many updates there are then."""
        return self._asked("step_together", number, list(workers))[0]

    def close(self) -> None:
        """Ends them."""
        for place in self._places:
            with suppress(Exception):
                self._ray.kill(place.actor)

    def _asked(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all; whoever is lost is replaced and asked again."""
        answers: list[Any] = [None] * len(self._places)
        missing = list(range(len(self._places)))
        while missing:
            sent = [getattr(self._places[index].actor, method).remote(*arguments) for index in missing]
            for index, answer in zip(list(missing), received(self._ray, sent, self._timeout), strict=True):
                if isinstance(answer, Exception):
                    self._replace(self._places[index])
                else:
                    answers[index] = answer
                    missing.remove(index)
        return answers

    def _replace(self, place: _Place) -> None:
        """Another server takes over the shard as it was when it was last copied."""
        while True:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise SteppeError(
                    "parameter servers are lost faster than they can be replaced; look at the machines that Ray runs "
                    "on, then resume from the last checkpoint"
                )
            with suppress(Exception):
                self._ray.kill(place.actor)
            place.asked, place.actor = None, self._made(place.duty)
            index, version = self._places.index(place), place.copy["counters"][0]
            log.warning("parameter server %d was lost; another one goes on from update %d", index, version)
            (answer,) = received(self._ray, [place.actor.restore.remote(place.copy)], 10 * self._timeout)
            if not isinstance(answer, Exception):
                return

    def _made(self, duty: Duty) -> Any:
        options = {"num_cpus": CPUS, "resources": self._room, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(ParameterServerActor).options(**options).remote(duty)

    def _note_progress(self, version: int) -> None:
        if version > self._version:
            self._losses = 0
        self._version = version
