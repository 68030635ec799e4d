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

    config: ShardConfig
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

    def __init__(self, config: ShardConfig) -> None:
        die_with_parent()
        super().__init__(config)


class ServerPool:
    """All shards together."""

    def __init__(
        self,
        ray: Any,
        configs: Sequence[ShardConfig],
        states: Sequence[State],
        timeout: float,
        room: Mapping[str, float] | None = None,
    ) -> None:
        """`room` is what each server asks of Ray beside CPUs."""
        self._ray, self._timeout, self._room = ray, timeout, dict(room or {})
        self._losses = 0
        now = time.monotonic()
        self._slots = [
            _ServerSlot(config, self._start_server(config), state, now)
            for config, state in zip(configs, states, strict=True)
        ]
        restored = [slot.actor.restore.remote(slot.copy) for slot in self._slots]
        ready, _ = ray.wait(restored, num_returns=len(restored), timeout=10 * timeout)
        if len(ready) < len(restored):
            raise UserError(
                f"Ray has started {len(ready)} of {len(restored)} parameter servers, which take {CPUS:g} CPUs each, in "
                f"{10 * timeout:g} s; free some CPUs of the Ray cluster, or lower num_parameter_servers"
            )
        for slot, answer in zip(self._slots, received(ray, restored, timeout), strict=True):
            if isinstance(answer, Exception):
                self._replace(slot)

    @property
    def handles(self) -> list[Any]:
        """What workers call, when all of them `are_there`."""
        return [slot.actor for slot in self._slots]

    @property
    def are_there(self) -> bool:
        """Whether they can be called: one that takes over for another knows nothing at first."""
        return all(slot.takeover is None for slot in self._slots)

    def check(self) -> None:
        """Takes in copies that have arrived, asks for new ones, looks for who takes over; waits for nothing."""
        now = time.monotonic()
        for slot in self._slots:
            if slot.takeover is not None:
                self._check_takeover(slot, now)
            elif slot.asked is None:
                weight = sum(array.nbytes for array in slot.copy.values()) / COPIED_BYTES_PER_SECOND
                if now - slot.copied > max(COPY_SECONDS, weight):
                    slot.asked, slot.copied = slot.actor.state.remote(), now
            elif self._ray.wait([slot.asked], timeout=0)[0]:
                asked, slot.asked = slot.asked, None
                (answer,) = received(self._ray, [asked], self._timeout)
                if isinstance(answer, Exception):
                    self._replace(slot)
                else:
                    if _version(answer) > _version(slot.copy):
                        self._losses = 0
                    slot.copy = answer
            elif now - slot.copied > self._timeout:
                self._replace(slot)

    def replace_lost(self, indices: Sequence[int]) -> None:
        """Replaces those of the servers that do not answer any more."""
        for slot in (self._slots[index] for index in indices):
            if slot.takeover is not None:
                continue
            (answer,) = received(self._ray, [slot.actor.pull.remote(-1, -1)], min(self._timeout, 5.0))
            if isinstance(answer, Exception):
                self._replace(slot)

    def states(self) -> list[State]:
        """What all of them know now; asked for while no worker pushes, it is what they knew at one moment.

        Of one that is lost it is the copy that another one begins with.
        """
        self._take_in(self._slots, self._call(self._slots, "state"))
        newest = max(_version(slot.copy) for slot in self._slots)
        # One that took over for another has made fewer updates; its targets are to move with those of the others.
        behind = [slot for slot in self._slots if slot.takeover is None and _version(slot.copy) < newest]
        self._take_in(behind, self._call(behind, "catch_up", newest))
        return [slot.copy for slot in self._slots]

    def pull(self) -> list[ServerAnswer]:
        """The newest parameters, shard by shard."""
        answers = self._call(self._slots, "pull", -1, -1)
        pairs = zip(self._slots, answers, strict=True)
        return [answer_in(slot.copy) if answer is None else answer for slot, answer in pairs]

    def step_together(self, number: int, workers: Sequence[int]) -> int:
        """Lets all of them step with what these workers have sent; how many updates there are then."""
        versions = self._call(self._slots, "step_together", number, list(workers))
        there = [version for version in versions if version is not None]
        return max(there or [_version(slot.copy) for slot in self._slots])

    def close(self) -> None:
        """Ends them."""
        for slot in self._slots:
            with suppress(Exception):
                self._ray.kill(slot.actor)

    def _call(self, slots: Sequence[_ServerSlot], method: str, *arguments: Any) -> list[Any]:
        """The answers of these, None of those that are lost: another one takes over, which nobody waits for here."""
        answers: list[Any] = [None] * len(slots)
        there = [index for index, slot in enumerate(slots) if slot.takeover is None]
        sent = [getattr(slots[index].actor, method).remote(*arguments) for index in there]
        for index, answer in zip(there, received(self._ray, sent, self._timeout), strict=True):
            if isinstance(answer, Exception):
                self._replace(slots[index])
            else:
                answers[index] = answer
        return answers

    def _take_in(self, slots: Sequence[_ServerSlot], states: Sequence[State | None]) -> None:
        for slot, state in zip(slots, states, strict=True):
            if state is not None:
                # What was asked for before is older.
                slot.copy, slot.copied, slot.asked = state, time.monotonic(), None

    def _check_takeover(self, slot: _ServerSlot, now: float) -> None:
        """Whether another server has taken over."""
        if self._ray.wait([slot.takeover], timeout=0)[0]:
            (answer,) = received(self._ray, [slot.takeover], self._timeout)
            if isinstance(answer, Exception):
                self._replace(slot)
            else:
                slot.takeover, slot.copied = None, now
        elif now - slot.since > 10 * self._timeout:
            # It may hang; or there is no machine for it, which is no loss however long it lasts.
            self._replace(slot, is_loss=False)
        elif now - slot.since > self._timeout and not slot.is_missed:
            slot.is_missed = True
            log.warning(
                "all workers wait for parameter server %d, which has not started yet; the Ray cluster may have no "
                "machine for it",
                self._slots.index(slot),
            )

    def _replace(self, slot: _ServerSlot, is_loss: bool = True) -> None:
        """Another server is to take over the shard as it was when it was last copied."""
        self._losses += is_loss
        if self._losses > MOST_LOSSES:
            raise SteppeError(
                "parameter servers are lost faster than they can be replaced; look at the machines that Ray runs "
                "on, then resume from the last checkpoint"
            )
        with suppress(Exception):
            self._ray.kill(slot.actor)
        slot.asked, slot.actor = None, self._start_server(slot.config, cpus=0.0)
        slot.takeover, slot.since, slot.is_missed = slot.actor.restore.remote(slot.copy), time.monotonic(), False
        index = self._slots.index(slot)
        log.warning("parameter server %d was lost; another one goes on from update %d", index, _version(slot.copy))

    def _start_server(self, config: ShardConfig, cpus: float = CPUS) -> Any:
        options = {"num_cpus": cpus, "resources": self._room, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(ParameterServerActor).options(**options).remote(config)


def _version(state: State) -> int:
    return int(state["counters"][0])
