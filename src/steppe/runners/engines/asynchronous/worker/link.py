"""A worker's connection to its learner: made again when it breaks, so that the worker need not care."""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import select
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Literal

from steppe.errors import ModuleNotAllowed, SteppeError, UserError
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
from steppe.runners.engines.asynchronous.wire.constants import (
    LONGEST_LINE,
    LONGEST_SENTENCE,
    MOST_LINES,
    NAME,
    TOKEN_VARIABLE,
    VERSION,
    Lines,
)
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.allowed_modules import NO_MODULES, AllowedModules
from steppe.specs.running.connections import split_address
from steppe.specs.spaces import to_json

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""How long an answer may take, beside the patience that the learner has told of."""
LISTENING_SECONDS = 1.0
"""How long a word that has begun to come may take."""
LEAVE_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to connect again: doubled each time."""

log = logging.getLogger(__name__)


class LearnerLost(SteppeError):
    """The learner did not come back in time."""


class TaskChanged(Exception):
    """Another learner has taken the old one's place, and wants something else."""


@dataclass(frozen=True)
class Door:
    """Where the learner is, and what lets a worker in."""

    address: str
    token: str | None = None
    tls: ssl.SSLContext | None = None
    reconnect: float = 300.0
    """For how many seconds a learner that cannot be reached is looked for."""
    name: str = ""
    """The worker's own; made up where none is given."""
    allowed: AllowedModules = NO_MODULES
    """The Python modules that layers of the learner's network may be imported from."""


class Welcome:
    """What the learner said when the worker joined."""

    def __init__(self, message: Message, door: Door) -> None:
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
        _check_policy(self.task.policy, door)


def _check_policy(policy: Any, door: Door) -> None:
    """Refuses a network whose layers would import a module that is not allowed, before anything is made of it."""
    if policy is None:
        return
    try:
        PolicyDescription.from_json(policy, door.allowed, f"the policy of the learner at {door.address}")
    except ModuleNotAllowed:
        raise
    except Exception as error:
        raise Malformed(f"sent a policy that cannot be understood ({type(error).__name__})") from error


class Link:
    """Asks the learner, and asks again after a break; batches carry a number, so that none counts twice."""

    def __init__(self, door: Door, spaces: Spaces, environments: int) -> None:
        self._door = door
        self._joining: Message = {
            "op": "join",
            "worker": door.name or secrets.token_hex(8),
            "environments": environments,
            "observation_space": to_json(spaces[0]),
            "action_space": to_json(spaces[1]),
        }
        self._ear: Ear | None = None
        self.welcome: Welcome | None = None

    @property
    def address(self) -> str:
        """The learner's."""
        return self._door.address

    def join(self) -> Welcome:
        """Connects, for as long as it may take, and hears what is to be done."""
        self._reach(None)
        assert self.welcome is not None
        return self.welcome

    def ask(self, message: Message) -> Message:
        """The answer to a message; `Over` when the learner is done, `TaskChanged` when another one has come."""
        while True:
            seconds = ANSWER_SECONDS + self._patience
            try:
                answer = self._ask(message, seconds)
                # It does something else, an evaluation maybe, and says now and then that it is still there.
                while answer["op"] == "wait":
                    answer = self._heard(seconds)
                return answer
            except (ChannelClosed, TooSlow) as error:
                self._reach(error)

    def listen(self) -> None:
        """Raises `Over` where the learner has said so without being asked."""
        if self._ear is not None and self._ear.is_ready():
            with contextlib.suppress(ChannelClosed, TooSlow):
                self._understood(self._ear.receive(LISTENING_SECONDS))

    def complain(self, sentence: str, lines: Lines) -> None:
        """Tells the learner what ends this worker, and what it last printed, if it can still be told."""
        with contextlib.suppress(ChannelClosed, TooSlow, Over, SteppeError):
            for start in range(0, len(lines), MOST_LINES):
                self._ask(said(lines[start : start + MOST_LINES]), LEAVE_SECONDS)
            self._ask({"op": "fault", "message": sentence}, LEAVE_SECONDS)

    def close(self) -> None:
        """Says goodbye, so that nobody waits for this worker; may be called again."""
        if self._ear is None:
            return
        with contextlib.suppress(ChannelClosed, TooSlow, Over, SteppeError):
            self._ask({"op": "leave"}, LEAVE_SECONDS)
        self._drop()

    @property
    def _patience(self) -> float:
        return 0.0 if self.welcome is None else self.welcome.task.patience

    def _reach(self, reason: Exception | None) -> None:
        """Connects and joins, with growing pauses, until the deadline."""
        door = self._door
        if reason is not None:
            log.warning("the learner at %s is gone (%s); looking for it", door.address, _why(reason))
        deadline, pause = time.monotonic() + door.reconnect, FIRST_PAUSE
        while True:
            self._drop()
            try:
                self._connect()
                return
            except (ChannelClosed, TooSlow) as error:
                reason = error
            except (TaskChanged, ModuleNotAllowed):
                # The learner still listens, and hears why its policy is refused.
                raise
            except BaseException:
                self._drop()
                raise
            pause = min(pause, max(0.0, deadline - time.monotonic()))
            if not pause:
                self._drop()
                raise LearnerLost(
                    f"the learner at {door.address} could not be reached within {door.reconnect:g} s "
                    f"({_why(reason)}); see that it runs and listens there, with TLS on both sides or on none, then "
                    "start this worker again"
                )
            # Many workers may wait for one learner: they should not come all at once.
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _connect(self) -> None:
        door = self._door
        sock = _connected(door)
        self._ear = Ear(sock)
        self._ask(_hello(door, sock), ANSWER_SECONDS)
        self._ear.limit = LARGEST
        while (answer := self._ask(self._joining, ANSWER_SECONDS))["op"] == "wait":
            log.debug("the learner at %s does not know its task yet", door.address)
        with self._understanding():
            welcome = Welcome(answer, door)
        before, self.welcome = self.welcome, welcome
        if before is not None:
            log.warning("the learner at %s is back", door.address)
            if before.task != welcome.task:
                raise TaskChanged

    def _ask(self, message: Message, seconds: float) -> Message:
        ear = self._ear
        if ear is None:
            raise ChannelClosed("it was closed")
        try:
            ear.send(message, seconds)
        except ChannelClosed:
            # Its last word may have come before the connection broke.
            self.listen()
            raise
        return self._heard(seconds)

    def _heard(self, seconds: float) -> Message:
        if self._ear is None:
            raise ChannelClosed("it was closed")
        try:
            return self._understood(self._ear.receive(seconds))
        except Malformed as error:
            raise self._babble(error) from None

    def _understood(self, answer: Message) -> Message:
        """The answer itself, unless it is an end."""
        if answer["op"] not in ("over", "error"):
            return answer
        self._drop()
        with self._understanding():
            sentence = read_text(answer, "message")
        if answer["op"] == "over":
            raise Over(sentence)
        address = self._door.address
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
            raise self._babble(error) from None

    def _babble(self, what: object) -> SteppeError:
        self._drop()
        return SteppeError(
            f'the learner at {self._door.address} {what}, so it does not speak version {VERSION} of the protocol "'
            f'{NAME}"; see that a learner listens at that address, and with TLS on both sides or on none'
        )

    def _drop(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()


def said(lines: Lines) -> Message:
    """What a worker has printed, for the learner's log."""
    texts = [line[:LONGEST_LINE].encode(errors="replace").decode() for _, line in lines]
    levels = [min(level, logging.CRITICAL) for level, _ in lines]
    return {"op": "said", "lines": list(map(list, zip(levels, texts, strict=True)))}


def decline(door: Door, kind: Literal["user", "fault"], sentence: str) -> None:
    """Tells the learner, if it can be told, why a worker will not join: by a mistake of the user's, or a fault."""
    with contextlib.suppress(ChannelClosed, TooSlow, Malformed, SteppeError):
        sock = _connected(door)
        ear = Ear(sock)
        try:
            unable: Message = {"op": "unable", "kind": kind, "message": sentence[:LONGEST_SENTENCE]}
            for message in (_hello(door, sock), unable):
                ear.send(message, CONNECT_SECONDS)
                ear.receive(CONNECT_SECONDS)
        finally:
            ear.close()


class Ear(Channel):
    """The worker's side of the connection: a last word may come right behind an answer."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._kept = 0
        """So many bytes at the start of the buffer belong to the next message."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def is_ready(self) -> bool:
        """Whether something has come, if only the end."""
        # What an encrypted socket has read ahead is not seen from outside.
        is_pending = getattr(self._sock, "pending", lambda: 0)
        return bool(self._kept or is_pending() or self._poll.poll(0))

    def receive(self, timeout: float | None = None) -> Message:
        """The next message; `timeout` seconds are for all of it."""
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


def _hello(door: Door, sock: socket.socket) -> Message:
    hello: Message = {"op": "hello", "protocol": NAME, "version": VERSION}
    token = door.token if door.token is not None else token_of_peer(sock)
    return hello | ({} if token is None else {"token": token})


def _connected(door: Door) -> socket.socket:
    host, port = split_address(door.address)
    try:
        sock = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ChannelClosed("no answer" if isinstance(error, TimeoutError) else reason_of(error)) from None
    if door.tls is None:
        return sock
    try:
        return door.tls.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise UserError(
            f"the certificate of the learner at {door.address} is not trusted ({error.verify_message}); name the file "
            "of its certificate in tls_ca"
        ) from None
    except ssl.SSLError as error:
        sock.close()
        raise UserError(
            f"the learner at {door.address} does not speak TLS ({reason_of(error)}); leave out tls_ca, or give the "
            "learner tls_cert and tls_key"
        ) from None
    except OSError as error:
        sock.close()
        raise ChannelClosed(reason_of(error)) from None


def _why(error: Exception) -> str:
    return str(error) or "it does not answer"
