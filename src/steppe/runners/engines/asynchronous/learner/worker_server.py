"""The learner's server: each connected worker gets a thread, which receives its batches and hands out the policy."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from steppe.errors import UserError
from steppe.net.admission import Admission, AdmissionLimits, AdmittedConnection
from steppe.net.hello import Greeting
from steppe.net.local_tokens import token_for
from steppe.net.sockets import is_loopback
from steppe.runners.engines.asynchronous.learner.inbox import Inbox
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.work_session import WorkSession
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess, access_from
from steppe.runners.engines.asynchronous.wire.board import Board
from steppe.runners.engines.asynchronous.wire.protocol import GREETING_SECONDS, NAME, VERSION
from steppe.specs.running.asynchronous import AsyncSpec
from steppe.specs.running.connections import split_address

LIMITS = AdmissionLimits(2048, 1024, pending=512, pending_per_address=256, greeting_seconds=GREETING_SECONDS)
"""Hundreds of workers of one machine may connect at once."""
END_SECONDS = 3.0
"""How long workers have at the end to be told that the run is over."""


class WorkerServer:
    """Listens in threads of its own, from its construction until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        access: LearnerAccess,
        inbox: Inbox,
        membership: Membership,
        worker_timeout: float,
        limits: AdmissionLimits = LIMITS,
    ) -> None:
        self.board, self.inbox, self.membership = Board(), inbox, membership
        self.worker_timeout = worker_timeout
        listener = _listen(host, port, must_be_local=access.token is None)
        try:
            self._local_token = token_for(listener, host, access.token)
        except BaseException:
            listener.close()
            raise
        access = access if self._local_token is None else replace(access, token=self._local_token.token)
        at, port = listener.getsockname()[:2]
        self.address = str(at), int(port)
        """The (host, port) that it really listens at."""
        self._sessions: dict[WorkSession, threading.Thread] = {}
        self._is_closed = False
        self.seed, self.starts = 0, 0
        """Seed the workers' randomness: the run's seed, and how often it was resumed."""
        greeting = Greeting(NAME, VERSION, access.token, "learner", "worker")
        self._admission = Admission(listener, greeting, access.tls, self._welcome, limits)
        self._thread = threading.Thread(target=self._admission.serve, name="worker-server", daemon=True)
        self._thread.start()

    @property
    def token_file(self) -> Path | None:
        """The file of the token that it made for itself, if it did."""
        return None if self._local_token is None or self._is_closed else self._local_token.files[0]

    def close(self, reason: str) -> None:
        """Tells every worker that the run is over, and ends all threads and connections; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._local_token is not None:
            self._local_token.remove()
        self.board.end(reason)
        self.inbox.close(reason)
        self._admission.stop()
        self._thread.join()
        sessions = dict(self._sessions)
        # Sessions notice it by themselves and tell their workers.
        _join(sessions, END_SECONDS)
        for session in sessions:
            session.stop()
        _join(sessions, END_SECONDS)

    def _welcome(self, member: AdmittedConnection) -> None:
        session = WorkSession(member, self)
        thread = threading.Thread(target=session.run, name=f"worker at {member.peer[0]}", daemon=True)
        thread.start()
        self._sessions = {each: its for each, its in self._sessions.items() if its.is_alive()} | {session: thread}


def server_opener(options: AsyncSpec) -> Callable[[str], tuple[WorkerServer, LearnerAccess]]:
    """Returns a function that opens the server at a host, or at `asynchronous.address` if that is given.

    Without a token of the user's a random one is made, for the workers that the run starts itself.
    """

    def opened(host: str) -> tuple[WorkerServer, LearnerAccess]:
        access = access_from(options.token_file, options.tls_cert, options.tls_key)
        port = 0
        if options.address is not None:
            host, port = split_address(options.address)
        access = access if access.token is not None else replace(access, token=secrets.token_hex(32))
        return open_server(options, host, port, access), access

    return opened


def open_server(options: AsyncSpec, host: str, port: int, access: LearnerAccess) -> WorkerServer:
    """A server that listens at (host, port)."""
    inbox = Inbox(options.queue_size, options.patience)
    return WorkerServer(host, port, access, inbox, Membership(), options.worker_timeout)


def _join(sessions: dict[WorkSession, threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in sessions.values():
        thread.join(max(0.0, deadline - time.monotonic()))


def _listen(host: str, port: int, *, must_be_local: bool) -> socket.socket:
    if must_be_local and not is_loopback(host):
        raise UserError(
            f"whoever reaches {host} could feed this learner; give a token by token_file or STEPPE_LEARNER_TOKEN, or "
            "listen at 127.0.0.1"
        )
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"cannot listen for workers at {host}:{port}: {(error.strerror or str(error)).lower()}; choose another "
            "address"
        ) from None
