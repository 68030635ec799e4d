"""A worker's connection to its learner, which reconnects by itself when it breaks."""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Literal

from steppe.errors import ModuleNotAllowed, SteppeError, UserError
from steppe.net.backoff import Backoff
from steppe.net.local_tokens import token_of_peer
from steppe.net.messagepack import Malformed, unpack
from steppe.net.protocol import (
    HEADER,
    LARGEST,
    Channel,
    ChannelClosed,
    Message,
    TooSlow,
    read_count,
    read_text,
    reason_of,
)
from steppe.policies.description import PolicyDescription
from steppe.runners.engines.asynchronous.learner.inbox import Over
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.protocol import (
    LONGEST_LINE,
    LONGEST_SENTENCE,
    MOST_LINES,
    NAME,
    TOKEN_VARIABLE,
    VERSION,
    LogLines,
)
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.allowed_modules import NO_MODULES, AllowedModules
from steppe.specs.running.connections import split_address
from steppe.specs.spaces import to_json

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""How long an answer may take, in addition to the patience in the learner's task."""
LISTENING_SECONDS = 1.0
"""How long a message that has begun to arrive may take."""
LEAVE_SECONDS = 2.0

log = logging.getLogger(__name__)


class LearnerLost(SteppeError):
    """The learner could not be reached again in time."""


class TaskChanged(Exception):
    """Another learner has replaced the old one and has another task."""


@dataclass(frozen=True)
class LearnerAddress:
    """The learner's address, and a worker's credentials."""

    address: str
    token: str | None = None
    tls: ssl.SSLContext | None = None
    reconnect: float = 300.0
    """For how many seconds to try to reach the learner."""
    name: str = ""
    """The worker's name; a random one if empty."""
    allowed: AllowedModules = NO_MODULES
    """The Python modules that layers of the learner's network may be imported from."""


class Welcome:
    """The learner's answer when the worker joined."""

    def __init__(self, message: Message, learner: LearnerAddress) -> None:
        self.session = read_text(message, "session", 100)
        self.number = read_count(message, "number", least=0)
        seed = message.get("seed")
        if not isinstance(seed, list) or not all(type(part) is int and part >= 0 for part in seed):
            raise Malformed('sent "seed" as something else than whole numbers')
        self.seed: list[int] = seed
        task = message.get("task")
        if not isinstance(task, dict):
            raise Malformed('sent "welcome" without a task')
        self.task = Task.from_json(task)
        _check_policy(self.task.policy, learner)


def _check_policy(policy: Any, learner: LearnerAddress) -> None:
    """Refuses a network whose layers would import a module that is not allowed, before it is built."""
    if policy is None:
        return
    try:
        PolicyDescription.from_json(policy, learner.allowed, f"the policy of the learner at {learner.address}")
    except ModuleNotAllowed:
        raise
    except Exception as error:
        raise Malformed(f"sent a policy that cannot be understood ({type(error).__name__})") from error


class LearnerConnection:
    """Sends requests to the learner, again after a break; batches are numbered, so that none counts twice."""

    def __init__(self, learner: LearnerAddress, spaces: Spaces, environments: int) -> None:
        self._learner = learner
        self._joining: Message = {
            "op": "join",
            "worker": learner.name or secrets.token_hex(8),
            "environments": environments,
            "observation_space": to_json(spaces[0]),
            "action_space": to_json(spaces[1]),
        }
        self._channel: ClientChannel | None = None
        self.welcome: Welcome | None = None

    @property
    def address(self) -> str:
        """The learner's address."""
        return self._learner.address

    def join(self) -> Welcome:
        """Connects, within the time that reconnecting may take, and receives the task."""
        self._reach(None)
        assert self.welcome is not None
        return self.welcome

    def ask(self, message: Message) -> Message:
        """The answer to a message; raises `Over` when the learner is done, and `TaskChanged`."""
        while True:
            seconds = ANSWER_SECONDS + self._patience
            try:
                answer = self._ask(message, seconds)
                # The learner is busy, for example with an evaluation, and reports that now and then.
                while answer["op"] == "wait":
                    answer = self._receive(seconds)
                return answer
            except (ChannelClosed, TooSlow) as error:
                self._reach(error)

    def listen(self) -> None:
        """Raises `Over` if the learner has sent it without being asked."""
        if self._channel is not None and self._channel.is_ready():
            with contextlib.suppress(ChannelClosed, TooSlow):
                self._understood(self._channel.receive(LISTENING_SECONDS))

    def complain(self, sentence: str, lines: LogLines) -> None:
        """Sends the learner the error that ends this worker and its last output, if it can still be reached."""
        with contextlib.suppress(ChannelClosed, TooSlow, Over, SteppeError):
            for start in range(0, len(lines), MOST_LINES):
                self._ask(log_message(lines[start : start + MOST_LINES]), LEAVE_SECONDS)
            self._ask({"op": "fault", "message": sentence}, LEAVE_SECONDS)

    def close(self) -> None:
        """Leaves as agreed, so that the learner does not wait for this worker; may be called again."""
        if self._channel is None:
            return
        with contextlib.suppress(ChannelClosed, TooSlow, Over, SteppeError):
            self._ask({"op": "leave"}, LEAVE_SECONDS)
        self._drop()

    @property
    def _patience(self) -> float:
        return 0.0 if self.welcome is None else self.welcome.task.patience

    def _reach(self, reason: Exception | None) -> None:
        """Connects and joins, with growing pauses, until `reconnect` seconds are over."""
        learner = self._learner
        if reason is not None:
            log.warning("the learner at %s is gone (%s); looking for it", learner.address, _why(reason))
        backoff = Backoff(learner.reconnect)
        while True:
            self._drop()
            try:
                self._connect()
                return
            except (ChannelClosed, TooSlow) as error:
                reason = error
            except (TaskChanged, ModuleNotAllowed):
                # The connection stays open, to tell the learner why its policy is refused.
                raise
            except BaseException:
                self._drop()
                raise
            if not backoff.wait():
                self._drop()
                raise LearnerLost(
                    f"the learner at {learner.address} could not be reached within {learner.reconnect:g} s "
                    f"({_why(reason)}); see that it runs and listens there, with TLS on both sides or on none, then "
                    "start this worker again"
                )

    def _connect(self) -> None:
        learner = self._learner
        sock = _connected(learner)
        self._channel = ClientChannel(sock)
        self._ask(_hello(learner, sock), ANSWER_SECONDS)
        self._channel.limit = LARGEST
        while (answer := self._ask(self._joining, ANSWER_SECONDS))["op"] == "wait":
            log.debug("the learner at %s does not know its task yet", learner.address)
        with self._understanding():
            welcome = Welcome(answer, learner)
        before, self.welcome = self.welcome, welcome
        if before is not None:
            log.warning("the learner at %s is back", learner.address)
            if before.task != welcome.task:
                raise TaskChanged

    def _ask(self, message: Message, seconds: float) -> Message:
        channel = self._channel
        if channel is None:
            raise ChannelClosed("it was closed")
        try:
            channel.send(message, seconds)
        except ChannelClosed:
            # The learner's last message may have arrived before the connection broke.
            self.listen()
            raise
        return self._receive(seconds)

    def _receive(self, seconds: float) -> Message:
        if self._channel is None:
            raise ChannelClosed("it was closed")
        try:
            return self._understood(self._channel.receive(seconds))
        except Malformed as error:
            raise self._not_our_protocol(error) from None

    def _understood(self, answer: Message) -> Message:
        """Returns the answer, or raises the error that it carries."""
        if answer["op"] not in ("over", "error"):
            return answer
        self._drop()
        with self._understanding():
            sentence = read_text(answer, "message")
        if answer["op"] == "over":
            raise Over(sentence)
        address = self._learner.address
        match answer.get("kind"):
            case "token":
                raise UserError(
                    f"the learner at {address} refuses the token: {sentence}; name its file in token_file, or set "
                    f"{TOKEN_VARIABLE}"
                )
            case "version":
                raise UserError(
                    f"the learner at {address} speaks version {str(answer.get('version'))[:20]} of the protocol and "
                    f"this Steppe version {VERSION}; install the same version of Steppe on both sides"
                )
            case "user":
                raise UserError(f"the learner at {address} says: {sentence}")
            case _:
                raise SteppeError(f"the learner at {address} says: {sentence}")

    @contextlib.contextmanager
    def _understanding(self) -> Any:
        try:
            yield
        except Malformed as error:
            raise self._not_our_protocol(error) from None

    def _not_our_protocol(self, what: object) -> SteppeError:
        self._drop()
        return SteppeError(
            f'the learner at {self._learner.address} {what}, so it does not speak version {VERSION} of the protocol "'
            f'{NAME}"; see that a learner listens at that address, and with TLS on both sides or on none'
        )

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def log_message(lines: LogLines) -> Message:
    """A message with lines that a worker has printed, for the learner's log."""
    texts = [line[:LONGEST_LINE].encode(errors="replace").decode() for _, line in lines]
    levels = [min(level, logging.CRITICAL) for level, _ in lines]
    return {"op": "said", "lines": list(map(list, zip(levels, texts, strict=True)))}


def decline(learner: LearnerAddress, kind: Literal["user", "fault"], sentence: str) -> None:
    """Tells the learner, if it can be reached, why a worker will not join."""
    with contextlib.suppress(ChannelClosed, TooSlow, Malformed, SteppeError):
        sock = _connected(learner)
        channel = ClientChannel(sock)
        try:
            unable: Message = {"op": "unable", "kind": kind, "message": sentence[:LONGEST_SENTENCE]}
            for message in (_hello(learner, sock), unable):
                channel.send(message, CONNECT_SECONDS)
                channel.receive(CONNECT_SECONDS)
        finally:
            channel.close()


class ClientChannel(Channel):
    """The worker's side of the connection, on which "over" may follow directly behind an answer."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._kept = 0
        """The number of bytes at the start of the buffer that belong to the next message."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def is_ready(self) -> bool:
        """Whether data, or the end of the connection, has arrived."""
        # `poll` does not notice data that an encrypted socket has already read.
        is_pending = getattr(self._sock, "pending", lambda: 0)
        return bool(self._kept or is_pending() or self._poll.poll(0))

    def receive(self, timeout: float | None = None) -> Message:
        """The next message, which must arrive completely within `timeout` seconds."""
        assert timeout is not None
        deadline = time.monotonic() + timeout
        filled, self._kept = self._kept, 0
        is_known = filled >= HEADER.size
        needed = self._measure() if is_known else HEADER.size
        while filled < needed:
            count = self._read_from(filled, deadline - time.monotonic())
            if not count:
                raise ChannelClosed("it was closed" if not filled else "it was closed in the middle of a message")
            filled += count
            if not is_known and filled >= HEADER.size:
                is_known, needed = True, self._measure()
        message = unpack(memoryview(self._buffer)[HEADER.size : needed])
        self._kept = filled - needed
        self._buffer[: self._kept] = self._buffer[needed:filled]
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise Malformed('sent a message without an "op"')
        return message


def _hello(learner: LearnerAddress, sock: socket.socket) -> Message:
    hello: Message = {"op": "hello", "protocol": NAME, "version": VERSION}
    token = learner.token if learner.token is not None else token_of_peer(sock)
    return hello | ({} if token is None else {"token": token})


def _connected(learner: LearnerAddress) -> socket.socket:
    host, port = split_address(learner.address)
    try:
        sock = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ChannelClosed("no answer" if isinstance(error, TimeoutError) else reason_of(error)) from None
    if learner.tls is None:
        return sock
    try:
        return learner.tls.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise UserError(
            f"the certificate of the learner at {learner.address} is not trusted ({error.verify_message}); name the "
            "file of its certificate in tls_ca"
        ) from None
    except ssl.SSLError as error:
        sock.close()
        raise UserError(
            f"the learner at {learner.address} does not speak TLS ({reason_of(error)}); leave out tls_ca, or give the "
            "learner tls_cert and tls_key"
        ) from None
    except OSError as error:
        sock.close()
        raise ChannelClosed(reason_of(error)) from None


def _why(error: Exception) -> str:
    return str(error) or "it does not answer"
