"""Requests as handlers see them, and their replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from steppe.errors import UserError
from steppe.serve.admission import RequestRefused
from steppe.serve.messages.exchange import NotFound, PolicyAnswer, Question, Unavailable
from steppe.serve.question_batches import Batcher

Headers = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
SHORT = 1 << 16
"""JSON of up to so many bytes is parsed without counting: its Python objects take at most forty times as many."""
MAX_VALUES = 1 << 20
"""Most numbers, texts, lists and objects in JSON: each takes up to a hundred bytes of memory."""
MAX_FIELDS = 1 << 16
"""Most fields of objects in JSON: each takes more memory than a number."""


@dataclass(slots=True)
class HttpRequest:
    """The parts of a request that handlers need; header names are in lower case."""

    headers: Headers
    body: bytes
    model: str | None = None
    version: str | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(slots=True)
class HttpReply:
    """A reply before it is written."""

    status: int
    body: bytes
    headers: Headers
    label: str = ""
    """The policy that answered, for the metrics and the access log."""


Handler = Callable[[HttpRequest], HttpReply | Awaitable[HttpReply]]


def answered(
    batcher: Batcher, question: Question, reply: Callable[[PolicyAnswer], HttpReply]
) -> HttpReply | Awaitable[HttpReply]:
    """Replies to a question, at once if possible, since an awaitable costs a turn of the event loop."""
    return reply(batcher.answer(question)) if batcher.answers_at_once else _answered_later(batcher, question, reply)


async def _answered_later(
    batcher: Batcher, question: Question, reply: Callable[[PolicyAnswer], HttpReply]
) -> HttpReply:
    return reply(await batcher.ask(question))


def as_json(data: Any, status: int = 200, label: str = "") -> HttpReply:
    """A reply in JSON."""
    body = orjson.dumps(data)
    return HttpReply(status, body, [JSON, (b"content-length", b"%d" % len(body))], label)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; UserError if it is invalid or would take too much memory."""
    if len(body) > SHORT:
        _check_amount(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = "; JSON has no NaN and no Infinity" if _has_no_number(body) else ""
        raise UserError(f"the request is not valid JSON: {error}{hint}") from None
    if type(data) is not dict:
        raise UserError("the request must be a JSON object")
    return data


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestRefused):
        return error.status
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, UserError):
        return 400
    return 503 if isinstance(error, Unavailable) else 500


def _check_amount(body: bytes) -> None:
    """Counts values before parsing: 16 MB of empty lists would become 500 MB of objects."""
    # Each value but the first follows one of these; those inside of texts are counted too.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_VALUES:
        raise UserError(
            f"a request may have at most {MAX_VALUES} values in JSON; send fewer observations at once, or send "
            "them as bytes"
        )
    if body.count(b":") > MAX_FIELDS:
        raise UserError(f"a request may have at most {MAX_FIELDS} fields in JSON")


def _has_no_number(body: bytes) -> bool:
    return any(word in body for word in (b"NaN", b"Infinity"))
