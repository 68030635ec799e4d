"""The learner's door: one thread for each worker receives its batches and hands it the newest policy."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time

from steppe.envs.remote.listening import is_loopback
from steppe.errors import UserError
from steppe.runners.asynchronous.access import Access
from steppe.runners.asynchronous.board import Board
from steppe.runners.asynchronous.inbox import Inbox
from steppe.runners.asynchronous.membership import Membership
from steppe.runners.asynchronous.session import Session

MAX_CONNECTIONS = 2048
"""How many connections are held at once, whether they have shown a token yet or not."""
END_SECONDS = 3.0
"""How long workers have at the end to hear that it is over."""

log = logging.getLogger(__name__)


class Server:
    """Listens from its making on, in threads of its own, until `close`."""

    def __init__(
        self, host: str, port: int, access: Access, inbox: Inbox, membership: Membership, worker_timeout: float
    ) -> None:
        self.board, self.inbox, self.membership = Board(), inbox, membership
        self.worker_timeout = worker_timeout
        self._access = access
        self._listener = _listen(host, port, must_be_local=access.token is None)
        at, port = self._listener.getsockname()[:2]
        self.address = str(at), int(port)
        """(host, port) that it really listens at."""
        self._waking, self._woken = socket.socketpair()
        self._doors = selectors.DefaultSelector()
        for door in (self._listener, self._woken):
            self._doors.register(door, selectors.EVENT_READ)
        self._sessions: dict[Session, threading.Thread] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.seed, self.starts = 0, 0
        """What the workers' randomness follows from: the run's seed, and how often it was resumed."""
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)
        self._thread.start()

    def close(self, reason: str) -> None:
        """Tells every worker that it is over, and ends all threads and connections; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.board.end(reason)
        self.inbox.close(reason)
        self._waking.send(b"s")
        self._thread.join()
        with self._lock:
            sessions = dict(self._sessions)
        # They find out by themselves, and say it to their workers.
        _join(sessions, END_SECONDS)
        for session in sessions:
            session.stop()
        _join(sessions, END_SECONDS)
        self._doors.close()
        self._listener.close()
        self._waking.close()
        self._woken.close()

    def _serve(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._doors.select()]
            if self._woken in ready:
                return
            self._accept()

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except OSError as error:
            # The caller is gone already, or there are no more file descriptors: others are to be served on.
            log.warning("a worker's connection could not be taken: %s", error)
            time.sleep(0.05)
            return
        with self._lock:
            self._sessions = {session: thread for session, thread in self._sessions.items() if thread.is_alive()}
            if len(self._sessions) >= MAX_CONNECTIONS:
                log.warning("a connection from %s was refused: there are %d already", peer[0], MAX_CONNECTIONS)
                sock.close()
                return
            session = Session(sock, f"{peer[0]}:{peer[1]}", self._access.token, self._access.tls, self)
            thread = threading.Thread(target=session.run, name=f"worker at {peer[0]}", daemon=True)
            self._sessions[session] = thread
            thread.start()


def _join(sessions: dict[Session, threading.Thread], seconds: float) -> None:
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
