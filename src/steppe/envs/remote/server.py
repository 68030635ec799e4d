"""Serves any gymnasium environment to learners elsewhere: one thread for each connection, with its own of them."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time

from steppe.envs.host import HostEnvs
from steppe.envs.remote.listening import is_loopback, listen
from steppe.envs.remote.session import Session
from steppe.errors import UserError
from steppe.specs.environment import EnvironmentSpec

MAX_CONNECTIONS = 256
"""How many connections are held at once, whether they have shown a token yet or not."""
END_SECONDS = 5.0
"""How long the steps under way may take when the server ends."""

log = logging.getLogger(__name__)


class Server:
    """Listens from its making on; `serve` answers until `stop` is called, from a signal handler or another thread."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        host: str,
        port: int,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_envs: int = 256,
    ) -> None:
        # Whatever is wrong with the environment should be heard now, and not by the first who wants to train.
        HostEnvs(spec, 1).close()
        self._spec, self._token, self._tls = spec, token, tls
        self._places = Places(max_envs)
        self._listener = _listen(host, port, must_be_local=token is None)
        self._waking, self._woken = socket.socketpair()
        self._sessions: dict[Session, threading.Thread] = {}

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that it really listens at."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Takes connections until it is stopped; then lets the steps under way finish and closes all environments."""
        try:
            while True:
                ready, _, _ = select.select([self._listener, self._woken], [], [])
                if self._woken in ready:
                    return
                self._accept()
        finally:
            self._listener.close()
            self._end_sessions()
            self._waking.close()
            self._woken.close()

    def stop(self) -> None:
        """Lets `serve` return; may be called again, and when it has returned."""
        try:
            self._waking.send(b"s")
        except OSError:
            log.debug("it has ended already")

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except OSError as error:
            # The caller is gone already, or there are no more file descriptors: others are to be served on.
            log.warning("a connection could not be taken: %s", error)
            time.sleep(0.05)
            return
        self._sessions = {session: thread for session, thread in self._sessions.items() if thread.is_alive()}
        if len(self._sessions) >= MAX_CONNECTIONS:
            log.warning("a connection from %s was refused: there are %d already", peer[0], MAX_CONNECTIONS)
            sock.close()
            return
        session = Session(sock, str(peer[0]), self._spec, self._token, self._tls, self._places)
        thread = threading.Thread(target=session.run, name=f"environments of {peer[0]}", daemon=True)
        self._sessions[session] = thread
        thread.start()

    def _end_sessions(self) -> None:
        for session in self._sessions:
            session.stop()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._sessions.values():
            thread.join(max(0.0, deadline - time.monotonic()))


class Places:
    """How many environments may live at once, over all connections."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> str | None:
        """Takes places for `count` environments; why not, if there are not so many."""
        with self._lock:
            if self._taken + count > self.most:
                return f"{count} environments are asked for, {self._taken} of at most {self.most} are in use"
            self._taken += count
            return None

    def give_back(self, count: int) -> None:
        """Frees places."""
        with self._lock:
            self._taken -= count


def _listen(host: str, port: int, *, must_be_local: bool) -> socket.socket:
    if must_be_local and not is_loopback(host):
        raise UserError(
            f"whoever reaches {host} could run this environment; give a token by --token-file or STEPPE_ENV_TOKEN, or "
            "serve at --host 127.0.0.1"
        )
    return listen(host, port)
