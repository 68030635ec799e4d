"""The driver's side of the parameter servers: copies of what they know, and who steps in for a lost one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steppe.errors import SteppeError, UserError
from steppe.runners.engines.distributed.gradient_worker import received
from steppe.runners.engines.distributed.parameter_server import (
    ParameterServer,
    ServerAnswer,
    ShardConfig,
    State,
    answer_in,
)
from steppe.runners.ray.ray_session import die_with_parent

CPUS = 0.25
"""What a server is counted as: it works only when something arrives. One that takes over for another is not counted,
so that it finds a place where workers have taken all the room that is left."""
COPY_SECONDS = 1.0
"""How old the driver's copy of a shard may become; a large one older, so that copying costs little."""
COPIED_BYTES_PER_SECOND = 10e6
MOST_LOSSES = 20
"""How many servers may be lost without an update in between before the run gives up."""

log = logging.getLogger(__name__)


@dataclass
class _ServerSlot:
    """One shard."""

    duty: ShardConfig
    actor: Any
    copy: State
    """What the server knew not long ago: what another one begins with, should it be lost."""
    copied: float = 0.0
    """When that was asked for."""
    asked: Any = None
    """A newer copy that is on its way."""
    takeover: Any = None
    """What tells that a new server has taken over the copy; None when it has."""
    since: float = 0.0
    """When it was asked to."""
    is_missed: bool = False
    """Whether its absence was told."""


class ParameterServerActor(ParameterServer):
    """In a process of its own, which ends with the Ray that started it."""

    def __init__(self, duty: ShardConfig) -> None:
        die_with_parent()
        super().__init__(duty)


class ServerPool:
    """All shards together."""

    def __init__(
        self,
        ray: Any,
        duties: Sequence[ShardConfig],
        states: Sequence[State],
        timeout: float,
        room: Mapping[str, float] | None = None,
    ) -> None:
        """`room` is what each server asks of Ray beside CPUs."""
        self._ray, self._timeout, self._room = ray, timeout, dict(room or {})
        self._losses = 0
        now = time.monotonic()
        self._places = [
            _ServerSlot(duty, self._made(duty), state, now) for duty, state in zip(duties, states, strict=True)
        ]
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
        """What workers call, when all of them `are_there`."""
        return [place.actor for place in self._places]

    @property
    def are_there(self) -> bool:
        """Whether they can be called: one that takes over for another knows nothing at first."""
        return all(place.takeover is None for place in self._places)

    def look_after(self) -> None:
        """Takes in copies that have arrived, asks for new ones, looks for who takes over; waits for nothing."""
        now = time.monotonic()
        for place in self._places:
            if place.takeover is not None:
                self._look_for(place, now)
            elif place.asked is None:
                weight = sum(array.nbytes for array in place.copy.values()) / COPIED_BYTES_PER_SECOND
                if now - place.copied > max(COPY_SECONDS, weight):
                    place.asked, place.copied = place.actor.state.remote(), now
            elif self._ray.wait([place.asked], timeout=0)[0]:
                asked, place.asked = place.asked, None
                (answer,) = received(self._ray, [asked], self._timeout)
                if isinstance(answer, Exception):
                    self._replace(place)
                else:
                    if _version(answer) > _version(place.copy):
                        self._losses = 0
                    place.copy = answer
            elif now - place.copied > self._timeout:
                self._replace(place)

    def mend(self, indices: Sequence[int]) -> None:
        """Replaces those of the servers that do not answer any more."""
        for place in (self._places[index] for index in indices):
            if place.takeover is not None:
                continue
            (answer,) = received(self._ray, [place.actor.pull.remote(-1, -1)], min(self._timeout, 5.0))
            if isinstance(answer, Exception):
                self._replace(place)

    def states(self) -> list[State]:
        """What all of them know now; asked for while no worker pushes, it is what they knew at one moment.

        Of one that is lost it is the copy that another one begins with.
        """
        self._take_in(self._places, self._asked(self._places, "state"))
        newest = max(_version(place.copy) for place in self._places)
        # One that took over for another has made fewer updates; its targets are to move with those of the others.
        behind = [place for place in self._places if place.takeover is None and _version(place.copy) < newest]
        self._take_in(behind, self._asked(behind, "catch_up", newest))
        return [place.copy for place in self._places]

    def pull(self) -> list[ServerAnswer]:
        """The newest parameters, shard by shard."""
        answers = self._asked(self._places, "pull", -1, -1)
        pairs = zip(self._places, answers, strict=True)
        return [answer_in(place.copy) if answer is None else answer for place, answer in pairs]

    def step_together(self, number: int, workers: Sequence[int]) -> int:
        """Lets all of them step with what these workers have sent; how many updates there are then."""
        versions = self._asked(self._places, "step_together", number, list(workers))
        there = [version for version in versions if version is not None]
        return max(there or [_version(place.copy) for place in self._places])

    def close(self) -> None:
        """Ends them."""
        for place in self._places:
            with suppress(Exception):
                self._ray.kill(place.actor)

    def _asked(self, places: Sequence[_ServerSlot], method: str, *arguments: Any) -> list[Any]:
        """The answers of these, None of those that are lost: another one takes over, which nobody waits for here."""
        answers: list[Any] = [None] * len(places)
        there = [index for index, place in enumerate(places) if place.takeover is None]
        sent = [getattr(places[index].actor, method).remote(*arguments) for index in there]
        for index, answer in zip(there, received(self._ray, sent, self._timeout), strict=True):
            if isinstance(answer, Exception):
                self._replace(places[index])
            else:
                answers[index] = answer
        return answers

    def _take_in(self, places: Sequence[_ServerSlot], states: Sequence[State | None]) -> None:
        for place, state in zip(places, states, strict=True):
            if state is not None:
                # What was asked for before is older.
                place.copy, place.copied, place.asked = state, time.monotonic(), None

    def _look_for(self, place: _ServerSlot, now: float) -> None:
        """Whether another server has taken over."""
        if self._ray.wait([place.takeover], timeout=0)[0]:
            (answer,) = received(self._ray, [place.takeover], self._timeout)
            if isinstance(answer, Exception):
                self._replace(place)
            else:
                place.takeover, place.copied = None, now
        elif now - place.since > 10 * self._timeout:
            # It may hang; or there is no machine for it, which is no loss however long it lasts.
            self._replace(place, is_loss=False)
        elif now - place.since > self._timeout and not place.is_missed:
            place.is_missed = True
            log.warning(
                "all workers wait for parameter server %d, which has not started yet; the Ray cluster may have no "
                "machine for it",
                self._places.index(place),
            )

    def _replace(self, place: _ServerSlot, is_loss: bool = True) -> None:
        """Another server is to take over the shard as it was when it was last copied."""
        self._losses += is_loss
        if self._losses > MOST_LOSSES:
            raise SteppeError(
                "parameter servers are lost faster than they can be replaced; look at the machines that Ray runs "
                "on, then resume from the last checkpoint"
            )
        with suppress(Exception):
            self._ray.kill(place.actor)
        place.asked, place.actor = None, self._made(place.duty, cpus=0.0)
        place.takeover, place.since, place.is_missed = place.actor.restore.remote(place.copy), time.monotonic(), False
        index = self._places.index(place)
        log.warning("parameter server %d was lost; another one goes on from update %d", index, _version(place.copy))

    def _made(self, duty: ShardConfig, cpus: float = CPUS) -> Any:
        options = {"num_cpus": cpus, "resources": self._room, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(ParameterServerActor).options(**options).remote(duty)


def _version(state: State) -> int:
    return int(state["counters"][0])
