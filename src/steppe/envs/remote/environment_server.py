"""Serves any environment to remote learners; each connection gets a thread and environments of its own."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from pathlib import Path

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.remote.session import EnvironmentQuota, EnvironmentSession
from steppe.errors import UserError
from steppe.net.admission import Admission, AdmissionLimits, AdmittedConnection
from steppe.net.hello import Greeting
from steppe.net.local_tokens import token_for
from steppe.net.protocol import NAME, VERSION
from steppe.net.sockets import is_loopback, listen
from steppe.specs.environment import EnvironmentSpec

LIMITS = AdmissionLimits(connections=256, connections_per_address=192)
END_SECONDS = 5.0
"""The time for the steps under way when the server ends."""

log = logging.getLogger(__name__)


class EnvironmentServer:
    """Listens as soon as it is constructed; `serve` answers until a signal handler or another thread calls `stop`."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        host: str,
        port: int,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_envs: int = 256,
        limits: AdmissionLimits = LIMITS,
    ) -> None:
        # Errors of the environment are raised now instead of to the first learner.
        GymnasiumEnvs(spec, 1).close()
        self._spec = spec
        self._quota = EnvironmentQuota(max_envs)
        self._listener = _listen(host, port, must_be_local=token is None)
        try:
            self._local_token = token_for(self._listener, host, token)
        except BaseException:
            self._listener.close()
            raise
        token = token if self._local_token is None else self._local_token.token
        at, number = self._listener.getsockname()[:2]
        self.address = str(at), int(number)
        """The actual (host, port)."""
        greeting = Greeting(NAME, VERSION, token, "server", "client")
        self._admission = Admission(self._listener, greeting, tls, self._welcome, limits)
        self._sessions: dict[EnvironmentSession, threading.Thread] = {}

    @property
    def token_file(self) -> Path | None:
        """The file of the token that the server generated, if it did."""
        return None if self._local_token is None else self._local_token.files[0]

    def serve(self) -> None:
        """Admits connections until it is stopped; then finishes the steps under way and closes all environments."""
        try:
            self._admission.serve()
        finally:
            if self._local_token is not None:
                self._local_token.remove()
            self._end_sessions()

    def stop(self) -> None:
        """Makes `serve` return; may be called again, and after it has returned."""
        self._admission.stop()

    def _welcome(self, member: AdmittedConnection) -> None:
        self._sessions = {session: thread for session, thread in self._sessions.items() if thread.is_alive()}
        session = EnvironmentSession(member, self._spec, self._quota)
        thread = threading.Thread(target=session.run, name=f"environments of {member.peer[0]}", daemon=True)
        thread.start()
        self._sessions[session] = thread

    def _end_sessions(self) -> None:
        for session in self._sessions:
            session.stop()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._sessions.values():
            thread.join(max(0.0, deadline - time.monotonic()))


def _listen(host: str, port: int, *, must_be_local: bool) -> socket.socket:
    if must_be_local and not is_loopback(host):
        raise UserError(
            f"whoever reaches {host} could run this environment; give a token by --token-file or STEPPE_ENV_TOKEN, or "
            "serve at --host 127.0.0.1"
        )
    return listen(host, port)
