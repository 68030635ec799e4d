"""The worker processes of a run: started by Ray, and replaced when they die or hang."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from steppe.errors import EnvironmentFault, UserError
from steppe.net.sockets import is_loopback
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.engines.asynchronous.wire.protocol import not_made_within
from steppe.runners.engines.asynchronous.worker.ray_actor import Placement, WorkerActor
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.ray.placement import check_room, check_sharing
from steppe.specs.allowed_modules import named_by
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.connections import split_address

TEND_SECONDS = 0.5
"""How often dead and hanging workers are looked for."""
BATCHES_PER_DEATH = 10
"""How many received batches make up for one death of a worker; the run fails if deaths outnumber them."""
WAS_KILLED = "its process was killed or ran out of memory"
KILLED = 0.25
"""The weight of the death of a killed worker, which need not be the environment's fault."""
END_SECONDS = 5.0
"""How long workers have to end by themselves."""
START_SECONDS = 120.0
"""After how long missing workers are logged."""

log = logging.getLogger(__name__)


class WorkerPool(Protocol):
    """Starts, supervises and ends the workers of a learner."""

    def open(self) -> str:
        """Prepares the pool; returns the host at which the learner should listen if none is set."""

    def start(self, server: WorkerServer, token: str | None) -> None:
        """Starts the workers, which connect to the learner's server."""

    def supervise(self) -> EnvironmentFault | None:
        """Replaces workers that died or hang; returns a fault once that is of no use."""

    def close(self) -> None:
        """Ends all workers; may be called again."""


class UnmanagedPool:
    """For workers that other programs start and end."""

    _membership: Membership | None = None

    def open(self) -> str:
        """The loopback address."""
        return "127.0.0.1"

    def start(self, server: WorkerServer, token: str | None) -> None:
        """Does nothing."""
        self._membership = server.membership

    def supervise(self) -> EnvironmentFault | None:
        """Does nothing."""
        if self._membership is not None:
            self._membership.take_hung()
        return None

    def close(self) -> None:
        """Does nothing."""


@dataclass
class WorkerSlot:
    """One worker of the pool."""

    name: str
    actor: Any
    arrival: Any
    """Resolves when Ray has started its process."""
    ending: Any
    """Resolves when the worker ends."""
    arrived: float | None = None
    """When its arrival was noticed."""
    has_joined: bool = False
    fault: str = ""
    """Why it was ended, if that is known."""


class ManagedPool:
    """The common part of pools with `num_workers` workers that are replaced when they die."""

    _membership: Membership

    def __init__(self, spec: ExperimentSpec, rules: EpisodeRules, num_envs: int) -> None:
        self._spec, self._rules, self._num_envs = spec, rules, num_envs
        self._level = 0.0
        """Deaths that received batches have not made up for."""
        self._supervised = self._started = 0.0
        self._batches = 0
        self._has_warned = False

    def _configuration(self) -> dict[str, Any]:
        """The configuration of all workers, to make their environments and to trust the learner."""
        certificate = self._spec.asynchronous.tls_cert
        return {
            "certificate": None if certificate is None else Path(certificate).read_text(),
            "environment": self._rules.environment.model_dump(mode="json"),
            "num_envs": self._num_envs,
            "max_timesteps": self._rules.max_timesteps,
            "repeat_actions": self._rules.repeat_actions,
            "modules": sorted(named_by(self._spec).names),
        }

    def _warn_if_missing(self, now: float, place: str) -> None:
        if self._has_warned or now - self._started < START_SECONDS:
            return
        self._has_warned = True
        here, wanted = self._membership.here, self._spec.num_workers
        if here < wanted:
            log.warning("only %d of %d workers have joined after %d s; %s", here, wanted, START_SECONDS, place)


class RayWorkerPool(ManagedPool):
    """A pool of `num_workers` Ray actors."""

    def __init__(self, spec: ExperimentSpec, rules: EpisodeRules, num_envs: int) -> None:
        super().__init__(spec, rules, num_envs)
        self._stack = contextlib.ExitStack()
        self._slots: list[WorkerSlot] = []

    def open(self) -> str:
        """Joins or starts a Ray; if it spans several machines, the learner must be reachable from all of them."""
        from steppe.runners.ray.ray_session import ray_session

        check_sharing(self._spec)
        ray_spec, count = self._spec.ray, self._spec.num_workers
        session = self._stack.enter_context(ray_session(ray_spec, cpus=count * ray_spec.cpus_per_worker))
        import ray

        check_room(ray, ray_spec, can_grow=not session.is_own or ray_spec.port is not None)
        self._host = self._host_among(ray, session.address)
        return self._host

    def start(self, server: WorkerServer, token: str | None) -> None:
        """Starts all workers; they wait until the learner has a task for them."""
        import ray

        self._ray, self._membership = ray, server.membership
        host, port = server.address
        if _is_everywhere(host):
            host = self._host
        self._plan: dict[str, Any] = self._configuration() | {
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "token": token,
            "reconnect": self._spec.asynchronous.reconnect,
            "paths": tuple(str(Path(path).absolute()) for path in sys.path),
        }
        self._started = time.monotonic()
        for _ in range(self._spec.num_workers):
            self._place()

    def supervise(self) -> EnvironmentFault | None:
        """Looks for dead and hanging workers every TEND_SECONDS."""
        now = time.monotonic()
        if now - self._supervised < TEND_SECONDS:
            return None
        self._supervised = now
        membership: Membership = self._membership
        self._warn_if_missing(now, "the Ray may have no room for more")
        received = membership.batches
        self._level = max(0.0, self._level - (received - self._batches) / BATCHES_PER_DEATH)
        self._batches = received
        for name in membership.take_hung():
            self._kill(name)
        self._end_stuck(now)
        done, _ = self._ray.wait([slot.ending for slot in self._slots], num_returns=len(self._slots), timeout=0)
        for slot in [slot for slot in self._slots if slot.ending in done]:
            reason = self._reason(slot)
            self._slots.remove(slot)
            self._level += KILLED if reason == WAS_KILLED else 1.0
            if self._level > self._spec.num_workers + 3:
                way_out = "" if reason != WAS_KILLED else "; lower num_workers, then resume from the last checkpoint"
                return EnvironmentFault(
                    f"workers die faster than they can be replaced; the last one: {reason}{way_out}"
                )
            log.warning("a worker died and is replaced: %s", reason)
            self._place()
        return None

    def close(self) -> None:
        """Lets workers end by themselves, then kills the rest."""
        slots, self._slots = self._slots, []
        try:
            if slots and self._ray.is_initialized():
                self._ray.wait([slot.ending for slot in slots], num_returns=len(slots), timeout=END_SECONDS)
                for slot in slots:
                    with contextlib.suppress(Exception):
                        self._ray.kill(slot.actor)
        finally:
            self._stack.close()

    def _host_among(self, ray: Any, address: str) -> str:
        """The address at which the machines of this Ray reach the learner, whatever address the Ray was joined by."""
        if address.startswith("ray://"):
            host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
            if not is_loopback(host):
                return _address_towards(host)
            # A loopback address may be forwarded from anywhere, and this machine is no part of that Ray.
            wanted = self._spec.asynchronous.address
            if wanted is None or _is_everywhere(host := split_address(wanted)[0]):
                raise UserError(
                    f"the machines of the Ray at {address} cannot be told where this learner is; give the address that "
                    "they reach it at by asynchronous.address, or join that Ray by another address than loopback"
                )
            return host
        # Another machine may join a Ray with an address in a network at any time.
        addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        return "127.0.0.1" if all(map(is_loopback, addresses)) else str(ray.util.get_node_ip_address())

    def _place(self) -> None:
        name, ray_spec = secrets.token_hex(8), self._spec.ray
        options = {"num_cpus": ray_spec.cpus_per_worker, "num_gpus": ray_spec.gpus_per_worker}
        actor: Any = self._ray.remote(WorkerActor).options(max_restarts=0, **options).remote()
        arrival, ending = actor.arrive.remote(), actor.work.remote(Placement(name=name, **self._plan))
        self._slots.append(WorkerSlot(name, actor, arrival, ending))

    def _kill(self, name: str) -> None:
        for slot in self._slots:
            if slot.name == name:
                log.warning("a worker hangs and is ended")
                self._ray.kill(slot.actor)

    def _end_stuck(self, now: float) -> None:
        """Ends workers that have a process but do not join: their environment hangs while it is made."""
        missing = [slot for slot in self._slots if not slot.has_joined and not slot.fault]
        if not missing:
            return
        arrived, _ = self._ray.wait([slot.arrival for slot in missing], num_returns=len(missing), timeout=0)
        patience = self._spec.asynchronous.worker_timeout
        for slot in missing:
            slot.has_joined = self._membership.knows(slot.name)
            if slot.has_joined or slot.arrival not in arrived:
                continue
            # Counted from this moment, not from its start: no worker can join until the learner is compiled.
            slot.arrived = slot.arrived or now
            if now - slot.arrived > patience:
                slot.fault = not_made_within(patience)
                self._ray.kill(slot.actor)

    def _reason(self, slot: WorkerSlot) -> str:
        """Why a worker ended; raises a mistake of the user's, unless workers with the same settings have worked."""
        try:
            ending = self._ray.get(slot.ending)
        except self._ray.exceptions.RayError:
            return slot.fault or WAS_KILLED
        if ending.kind == "user" and not self._batches:
            raise UserError(ending.sentence)
        return ending.sentence or "it ended by itself"


def _is_everywhere(host: str) -> bool:
    """Whether a host means all addresses of a machine, so that workers cannot connect to it."""
    return host in ("0.0.0.0", "::")


def _address_towards(host: str) -> str:
    """This machine's address in the network of `host`; nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
