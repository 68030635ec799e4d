"""One connection to one server, which steps its share of the environments."""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from typing import Any, NamedTuple

import numpy as np

from steppe.envs.gymnasium._sync import EnvDescription, StepBuffers
from steppe.errors import EnvironmentFault, UserError, reason_of
from steppe.net import protocol
from steppe.net.local_tokens import token_of_peer
from steppe.net.messagepack import Malformed
from steppe.specs.running.connections import split_address
from steppe.specs.spaces import Box, action_dtype

CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 2.0


class ServerLost(Exception):
    """A connection was lost or refused; another attempt may succeed."""

    def __init__(self, link: ServerLink, reason: str) -> None:
        super().__init__(reason)
        self.link = link


class ServerBusy(ServerLost):
    """The server has no room for more environments at the moment."""


class StepExtras(NamedTuple):
    """The optional parts of the answer to a step."""

    began: np.ndarray | None
    """[ended, ...]: the first observations of the episodes that began."""
    scores: np.ndarray | None
    """Float32 [count]: the rewards before any clipping, if they differ."""
    finished: np.ndarray | None
    """Bool [count]: whether a whole episode is over, if that differs from terminated or truncated."""


class ServerLink:
    """The environments `first` to `first + count - 1` of a run, in one server."""

    def __init__(self, address: str, first: int, count: int, timeout: float) -> None:
        self.address, self.rows = address, slice(first, first + count)
        self.environment = "remote"
        self.description: EnvDescription
        self._count, self._timeout = count, timeout
        self._bounds: tuple[np.ndarray, np.ndarray] | None = None
        self._channel: protocol.Channel | None = None
        self.asked = ""

    def open(self, token: str | None, tls: ssl.SSLContext | None, max_timesteps: int | None, repeat: int) -> None:
        """Connects and asks for the environments."""
        self.asked = ""
        sock = self._connect(tls)
        token = token if token is not None else token_of_peer(sock)
        self._channel = protocol.Channel(sock)
        greeting: protocol.Message = {"op": "hello", "protocol": protocol.NAME, "version": protocol.VERSION}
        self._send(greeting | ({"token": token} if token is not None else {}))
        self._channel.limit = protocol.DESCRIPTION_LIMIT
        welcome = self._receive("welcome")
        with self._decoding():
            version = protocol.read_count(welcome, "version")
            self.environment = protocol.read_text(welcome, "environment", 200)
        if version != protocol.VERSION:
            raise UserError(self._version_message(version))
        self._send({"op": "make", "count": self._count, "max_timesteps": max_timesteps, "repeat": repeat})
        made = self._receive("made")
        with self._decoding():
            self.description = EnvDescription(
                protocol.read_space(made, "observation_space"),
                protocol.read_space(made, "action_space"),
                protocol.read_count(made, "limit", optional=True),
            )
        _, longest = protocol.limits_for(self.description.observation_space, self.description.action_space, self._count)
        if longest > protocol.LARGEST:
            raise UserError(
                f"{self._count} environments of {self} observe {longest:,} bytes at once, more than one message may "
                "hold; use fewer environments for each server"
            )
        self._channel.limit = longest
        action_space = self.description.action_space
        self._bounds = action_space.bounds() if isinstance(action_space, Box) else None

    def ask_reset(self, seed: int) -> None:
        """Asks for new episodes, environment i seeded with seed + i."""
        self._send({"op": "reset", "seed": seed})

    def take_reset(self, observations: np.ndarray) -> None:
        """Waits for the first observations, [count, ...]."""
        answer = self._receive("began")
        with self._decoding():
            protocol.read_array(answer, "observations", observations)

    def ask_step(self, actions: np.ndarray) -> None:
        """Asks for one decision in each environment; actions: [count, ...]."""
        space = self.description.action_space
        if self._bounds is not None:
            actions = np.clip(actions.reshape(len(actions), *space.shape), *self._bounds)
        self._send({"op": "step", "actions": protocol.to_wire(actions.astype(action_dtype(space), copy=False))})

    def take_step(self, out: StepBuffers) -> StepExtras:
        """Writes the [count, ...] rows of all results but `observations`, and returns the optional parts."""
        answer = self._receive("stepped")
        with self._decoding():
            protocol.read_array(answer, "next_observations", out.next_observations)
            protocol.read_array(answer, "rewards", out.rewards)
            protocol.read_array(answer, "terminated", out.terminated)
            protocol.read_array(answer, "truncated", out.truncated)
            out.truncated[out.terminated] = False
            ended = int(np.count_nonzero(out.terminated) + np.count_nonzero(out.truncated))
            began = _read(answer, "observations", (ended, *out.observations.shape[1:]), out.observations.dtype)
            if ended and began is None:
                raise Malformed('sent ended episodes without the first "observations" of the next ones')
            return StepExtras(
                began if ended else None,
                _read(answer, "scores", out.rewards.shape, out.rewards.dtype),
                _read(answer, "finished", out.terminated.shape, out.terminated.dtype),
            )

    def close(self) -> None:
        """Asks the server to close its environments, which frees their room, and hangs up."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        with contextlib.suppress(protocol.ChannelClosed, protocol.TooSlow, Malformed):
            channel.send({"op": "close"}, CLOSE_SECONDS)
            channel.receive(CLOSE_SECONDS)
        channel.close()

    def drop(self) -> None:
        """Hangs up at once."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def __str__(self) -> str:
        return f'environment "{self.environment}" at {self.address}'

    def _connect(self, tls: ssl.SSLContext | None) -> socket.socket:
        host, port = split_address(self.address)
        try:
            sock = socket.create_connection((host, port), timeout=min(CONNECT_SECONDS, self._timeout))
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
            raise ServerLost(self, reason) from None
        if tls is None:
            return sock
        try:
            return tls.wrap_socket(sock, server_hostname=host)
        except OSError as error:
            sock.close()
            raise self._tls_failure(error) from None

    def _tls_failure(self, error: OSError) -> Exception:
        server = f"environment server at {self.address}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return UserError(
                f"the certificate of the {server} is not trusted ({error.verify_message}); name the file of its "
                "certificate in tls_ca"
            )
        if isinstance(error, ssl.SSLError):
            return UserError(
                f"the {server} does not speak TLS ({reason_of(error)}); leave out tls and tls_ca, or serve with "
                "--tls-cert and --tls-key"
            )
        return ServerLost(self, reason_of(error))

    def _send(self, message: protocol.Message) -> None:
        self.asked = message["op"]
        try:
            self._open_channel.send(message, self._timeout)
        except protocol.ChannelClosed as error:
            raise ServerLost(self, str(error)) from None
        except protocol.TooSlow:
            raise self._timeout_fault() from None

    def _receive(self, op: str) -> protocol.Message:
        """The answer to the last request; an error of the server is raised as the matching exception."""
        try:
            answer = self._open_channel.receive(self._timeout)
        except protocol.ChannelClosed as error:
            raise ServerLost(self, str(error)) from None
        except protocol.TooSlow:
            raise self._timeout_fault() from None
        except Malformed as error:
            raise self._protocol_fault(error) from None
        if answer["op"] == "error":
            with self._decoding():
                kind, message = protocol.read_text(answer, "kind"), protocol.read_text(answer, "message")
            raise self._server_error(kind, message, answer.get("version"))
        if answer["op"] != op:
            raise self._protocol_fault(f'answered "{self.asked}" by "{answer["op"][:50]}"')
        return answer

    @property
    def _open_channel(self) -> protocol.Channel:
        if self._channel is None:
            raise ServerLost(self, "it was closed")
        return self._channel

    @contextlib.contextmanager
    def _decoding(self) -> Any:
        try:
            yield
        except Malformed as error:
            raise self._protocol_fault(error) from None

    def _server_error(self, kind: str, message: str, version: Any) -> Exception:
        self.drop()
        match kind:
            case "busy":
                return ServerBusy(self, message)
            case "token":
                return UserError(
                    f"the environment server at {self.address} refuses the token: {message}; name its file in "
                    "token_file, or set STEPPE_ENV_TOKEN"
                )
            case "version":
                return UserError(self._version_message(version))
            case "user":
                return UserError(f"the environment server at {self.address} says: {message}")
            case _:
                return EnvironmentFault(f"the environment server at {self.address} says: {message}")

    def _version_message(self, theirs: Any) -> str:
        return (
            f"the environment server at {self.address} speaks version {str(theirs)[:20]} of the protocol and this "
            f"Steppe version {protocol.VERSION}; install the same version of Steppe on both sides"
        )

    def _timeout_fault(self) -> EnvironmentFault:
        self.drop()
        return EnvironmentFault(
            f'{self}: its server did not answer "{self.asked}" within {self._timeout:g} s; see what it does, or '
            "give it more time with timeout, then resume from the last checkpoint"
        )

    def _protocol_fault(self, what: object) -> EnvironmentFault:
        self.drop()
        hint = " (is it served with TLS? then set tls_ca)" if self.asked == "hello" else ""
        name = f'version {protocol.VERSION} of the protocol "{protocol.NAME}"'
        return EnvironmentFault(
            f'{self}: its server {what}, so it does not speak {name}{hint}; use "steppe env serve", or correct the '
            "server"
        )


def _read(answer: protocol.Message, field: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
    """The array in a field, or None if the field is missing."""
    if field not in answer:
        return None
    out = np.empty(shape, dtype)
    protocol.read_array(answer, field, out)
    return out


def shares(addresses: list[str], count: int, timeout: float) -> list[ServerLink]:
    """`count` environments spread evenly over the servers, first to last."""
    servers = addresses[:count]
    bounds = [math.floor(count * i / len(servers)) for i in range(len(servers) + 1)]
    return [
        ServerLink(address, first, end - first, timeout)
        for address, first, end in zip(servers, bounds, bounds[1:], strict=False)
    ]
