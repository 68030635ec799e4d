"""The learner's side of one worker's connection: lets it join, receives batches, hands out the newest policy."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from typing import TYPE_CHECKING

from steppe.errors import SteppeError, UserError
from steppe.net.admission import AdmittedConnection
from steppe.net.hello import PeerRefused
from steppe.net.messagepack import Malformed
from steppe.net.protocol import (
    DESCRIPTION_LIMIT,
    Channel,
    ChannelClosed,
    Message,
    TooSlow,
    printable,
    read_count,
    read_space,
    read_text,
)
from steppe.runners.engines.asynchronous.learner.inbox import Over
from steppe.runners.engines.asynchronous.wire.batches import MOST_ENVIRONMENTS, BatchFormat, from_message
from steppe.runners.engines.asynchronous.wire.protocol import (
    GREETING_SECONDS,
    LISTEN_SECONDS,
    LONGEST_LINE,
    LONGEST_SENTENCE,
    MOST_LINES,
    VERSION,
    LogLines,
)
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.spaces import are_same, to_json

if TYPE_CHECKING:
    from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer

JOIN_SECONDS = 60.0
"""How long a worker may take to join after its greeting."""
TASK_SECONDS = 1.0
"""How long a worker waits for its task before it is told to ask again."""

log = logging.getLogger(__name__)


class WorkSession:
    """Serves one worker, in a thread of its own, until either side ends it."""

    def __init__(self, member: AdmittedConnection, server: WorkerServer) -> None:
        self._member, self._sock, self._server = member, member.sock, server
        self._peer = "{}:{}".format(*member.peer)
        self._channel: Channel | None = None
        self._number = -1

    def run(self) -> None:
        """Serves the worker until the end; errors are sent to it if that is possible."""
        try:
            self._channel = channel = Channel(self._sock)
            channel.limit = DESCRIPTION_LIMIT
            self._send({"op": "proceed"})
            self._serve(channel)
        except (ChannelClosed, TooSlow) as error:
            log.info("%s: disconnected (%s)", self._peer, str(error) or "too slow")
        except Exception as error:
            self._send_error(error)
        finally:
            (self._channel or self._sock).close()
            self._member.leave()

    def stop(self) -> None:
        """Ends the session at once; called from another thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _serve(self, channel: Channel) -> None:
        """Everything after the greeting: the task, then batch after batch."""
        joining, task, form = self._join()
        name, environments = read_text(joining, "worker", 100), read_count(joining, "environments")
        if environments > MOST_ENVIRONMENTS:
            raise Malformed(f"has {environments} environments where at most {MOST_ENVIRONMENTS} make sense")
        channel.limit = form.largest(environments)
        server = self._server
        number, connection = server.membership.join(name)
        self._number = number
        log.info("%s: worker %d has joined", self._peer, number)
        vanished, has_failed = True, False
        try:
            welcome = {"session": server.board.name, "number": number, "seed": [server.seed, server.starts]}
            self._send({"op": "welcome", **welcome, "task": task.to_json()})
            while (request := self._receive())["op"] != "leave":
                # A worker that fails loses the batch that it was collecting, even if it then leaves as agreed.
                has_failed |= request["op"] == "fault"
                answer = self._answer(request, name, environments, form)
                if request["op"] == "batch" and self._is_gone():
                    # Its batch is counted, and it has not begun another one.
                    vanished = False
                    raise ChannelClosed("it was closed while its batch waited")
                self._send(answer)
            vanished = has_failed
            self._send({"op": "bye"})
        except Over:
            vanished = False
            raise
        except ChannelClosed as error:
            log.warning("worker %d is gone: %s", number, error)
        except TooSlow:
            log.warning("worker %d has taken no timestep for %g s and is given up", number, server.worker_timeout)
            server.membership.give_up(name)
        finally:
            server.membership.leave(name, connection, vanished)

    def _join(self) -> tuple[Message, Task, BatchFormat]:
        """Returns the worker's join message and, once the learner knows them, the task and its batches' format."""
        board = self._server.board
        while True:
            joining = self._receive(min(JOIN_SECONDS, self._server.worker_timeout))
            if joining["op"] == "unable":
                sentence, kind = read_text(joining, "message", LONGEST_SENTENCE), read_text(joining, "kind", 100)
                log.warning("%s: a worker cannot join: %s", self._peer, sentence)
                self._server.membership.decline(sentence, is_mistake=kind == "user")
                self._send({"op": "noted"})
                raise ChannelClosed("it cannot join")
            if joining["op"] != "join":
                raise Malformed(f'sent "{joining["op"][:50]}" where "join" belongs')
            spaces = read_space(joining, "observation_space"), read_space(joining, "action_space")
            board.tell_spaces(spaces)
            if (offered := board.wait_for_task(TASK_SECONDS)) is not None:
                break
            self._send({"op": "wait"})
        for what, theirs, mine in zip(("observes", "takes"), spaces, offered.spaces, strict=True):
            if not are_same(theirs, mine):
                shown, wanted = (str(to_json(space))[:300] for space in (theirs, mine))
                raise PeerRefused("user", f"the worker's environment {what} {shown}, but the policy is for {wanted}")
        return joining, offered.task, offered.form

    def _answer(self, request: Message, name: str, environments: int, form: BatchFormat) -> Message:
        server = self._server
        match request["op"]:
            case "batch":
                batch, known = from_message(request, form, environments), _known(request)
                # A repeated batch is in the inbox already, or was dropped; it is counted in either case.
                is_new = server.membership.claim(name, batch.sequence)
                taken = server.inbox.put(batch, self._ask_to_wait) if is_new else True
                return {"op": "taken" if taken else "dropped"} | server.board.news(*known)
            case "fetch":
                return {"op": "news"} | server.board.news(*_known(request))
            case "alive":
                return {"op": "noted"}
            case "said":
                for level, line in _lines(request):
                    log.log(level, "worker %d: %s", self._number, line)
                return {"op": "noted"}
            case "fault":
                sentence = read_text(request, "message", LONGEST_SENTENCE)
                log.warning("%s: %s", self._peer, sentence)
                server.membership.complaint = sentence
                return {"op": "noted"}
            case op:
                raise Malformed(f'sent "{op[:50]}", which the protocol does not have')

    def _receive(self, seconds: float | None = None) -> Message:
        """The worker's next message; raises `Over` once the run is over and `TooSlow` if the worker is silent."""
        assert self._channel is not None
        seconds = self._server.worker_timeout if seconds is None else seconds
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        while not poller.poll(LISTEN_SECONDS * 1000):
            self._server.board.raise_if_over()
            if time.monotonic() >= deadline:
                raise TooSlow
        self._server.board.raise_if_over()
        return self._channel.receive(seconds)

    def _ask_to_wait(self) -> None:
        """Tells a worker whose batch waits that its learner is still there."""
        # A worker that is gone is noticed when its batch is received.
        with contextlib.suppress(ChannelClosed, TooSlow):
            self._send({"op": "wait"})

    def _is_gone(self) -> bool:
        """Whether the worker has closed the connection; systems without POLLRDHUP notice it later."""
        poller = select.poll()
        poller.register(self._sock, getattr(select, "POLLRDHUP", 0))
        return bool(poller.poll(0))

    def _send(self, message: Message) -> None:
        assert self._channel is not None
        self._channel.send(message, self._server.worker_timeout)

    def _send_error(self, error: Exception) -> None:
        """Sends why the connection ends, as its last message."""
        match error:
            case Over():
                message = {"op": "over"}
            case PeerRefused():
                message = {"op": "error", "kind": error.kind}
            case Malformed():
                message = {"op": "error", "kind": "protocol"}
            case SteppeError():
                message = {"op": "error", "kind": "user" if isinstance(error, UserError) else "fault"}
            case _:
                log.error("%s: the connection failed", self._peer, exc_info=error)
                message = {"op": "error", "kind": "fault"}
        sentence = f"the worker {error}" if isinstance(error, Malformed) else str(error) or type(error).__name__
        if message["op"] == "error":
            log.warning("%s: %s", self._peer, sentence)
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed, TooSlow):
                last = message | {"message": sentence[:LONGEST_SENTENCE], "version": VERSION}
                self._channel.send(last, GREETING_SECONDS)
                self._channel.hang_up()


def _lines(request: Message) -> LogLines:
    """Reads the lines that a worker has printed."""
    lines = request.get("lines")
    if not isinstance(lines, list) or len(lines) > MOST_LINES + 1:
        raise Malformed(f'sent "lines" as something else than up to {MOST_LINES + 1} of them')
    for line in lines:
        if not (
            isinstance(line, list) and [type(part) for part in line] == [int, str] and 0 <= line[0] <= logging.CRITICAL
        ):
            raise Malformed('sent "lines" of something else than a level and a text each')
    return [(level, printable(text[:LONGEST_LINE])) for level, text in lines]


def _known(request: Message) -> tuple[int, str]:
    """Reads (the version of the worker's policy, the name of the learner that it is from)."""
    return read_count(request, "has", least=-1), read_text(request, "session", 100)
