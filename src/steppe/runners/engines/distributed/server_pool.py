"""The driver's side of the parameter servers: keeps copies of their states, and replaces lost servers."""

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
"""The CPUs that a server asks Ray for: it works only when a message arrives. One that replaces another asks for none,
so that Ray can start it even if workers have taken all CPUs."""
COPY_SECONDS = 1.0
"""How old the driver's copy of a shard may become; copies of large shards may become older, since they cost more."""
COPIED_BYTES_PER_SECOND = 10e6
MOST_LOSSES = 20
"""How many servers may be lost without an update in between before the run fails."""

log = logging.getLogger(__name__)


@dataclass
class _ServerSlot:
    """The server of one shard."""

    config: ShardConfig
    actor: Any
    copy: State
    """The server's state not long ago, from which another one continues if it is lost."""
    copied: float = 0.0
    """When the copy was asked for."""
    asked: Any = None
    """Ray's reference to a newer copy that is under way."""
    takeover: Any = None
    """Ray's reference to a new server's restoring of the copy; None once it is done."""
    since: float = 0.0
    """When the new server was started."""
    is_missed: bool = False
    """Whether it was logged that it has not started."""


class ParameterServerActor(ParameterServer):
    """A parameter server in a process of its own, which ends with the Ray that started it."""

    def __init__(self, config: ShardConfig) -> None:
        die_with_parent()
        super().__init__(config)


class ServerPool:
    """The servers of all shards."""

    def __init__(
        self,
        ray: Any,
        configs: Sequence[ShardConfig],
        states: Sequence[State],
        timeout: float,
        room: Mapping[str, float] | None = None,
    ) -> None:
        """`room` are the resources that each server asks Ray for beside CPUs."""
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
        """Ray's handles of the servers, which workers may call if they `are_there`."""
        return [slot.actor for slot in self._slots]

    @property
    def are_there(self) -> bool:
        """Whether all servers can be called: one that replaces another has no state at first."""
        return all(slot.takeover is None for slot in self._slots)

    def check(self) -> None:
        """Receives copies, asks for new ones, and checks servers that replace others; never waits."""
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
        """Replaces those of the servers that no longer answer."""
        for slot in (self._slots[index] for index in indices):
            if slot.takeover is not None:
                continue
            (answer,) = received(self._ray, [slot.actor.pull.remote(-1, -1)], min(self._timeout, 5.0))
            if isinstance(answer, Exception):
                self._replace(slot)

    def states(self) -> list[State]:
        """The states of all servers; they are of one moment if no worker pushes meanwhile.

        For a lost server it is the copy that its replacement starts from.
        """
        self._take_in(self._slots, self._call(self._slots, "state"))
        newest = max(_version(slot.copy) for slot in self._slots)
        # A replacement has made fewer updates; it must move its targets together with the others.
        behind = [slot for slot in self._slots if slot.takeover is None and _version(slot.copy) < newest]
        self._take_in(behind, self._call(behind, "catch_up", newest))
        return [slot.copy for slot in self._slots]

    def pull(self) -> list[ServerAnswer]:
        """The newest parameters, shard by shard."""
        answers = self._call(self._slots, "pull", -1, -1)
        pairs = zip(self._slots, answers, strict=True)
        return [answer_in(slot.copy) if answer is None else answer for slot, answer in pairs]

    def step_together(self, number: int, workers: Sequence[int]) -> int:
        """Lets all servers step with the gradients of these workers; returns the version."""
        versions = self._call(self._slots, "step_together", number, list(workers))
        there = [version for version in versions if version is not None]
        return max(there or [_version(slot.copy) for slot in self._slots])

    def close(self) -> None:
        """Ends all servers."""
        for slot in self._slots:
            with suppress(Exception):
                self._ray.kill(slot.actor)

    def _call(self, slots: Sequence[_ServerSlot], method: str, *arguments: Any) -> list[Any]:
        """Calls a method of several servers; None for those that are lost, whose replacements are not waited for."""
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
                # A copy that was asked for before is older.
                slot.copy, slot.copied, slot.asked = state, time.monotonic(), None

    def _check_takeover(self, slot: _ServerSlot, now: float) -> None:
        """Checks whether a replacement has restored its copy."""
        if self._ray.wait([slot.takeover], timeout=0)[0]:
            (answer,) = received(self._ray, [slot.takeover], self._timeout)
            if isinstance(answer, Exception):
                self._replace(slot)
            else:
                slot.takeover, slot.copied = None, now
        elif now - slot.since > 10 * self._timeout:
            # The server may hang, or no machine has room for it, which does not count as a loss.
            self._replace(slot, is_loss=False)
        elif now - slot.since > self._timeout and not slot.is_missed:
            slot.is_missed = True
            log.warning(
                "all workers wait for parameter server %d, which has not started yet; the Ray cluster may have no "
                "machine for it",
                self._slots.index(slot),
            )

    def _replace(self, slot: _ServerSlot, is_loss: bool = True) -> None:
        """Starts another server from the last copy of the shard."""
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
