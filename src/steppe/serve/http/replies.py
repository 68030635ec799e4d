"""A request as handlers see it, and what they reply: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from steppe.errors import UserError
from steppe.serve.admission import Refused
from steppe.serve.messages.exchange import NotFound, Unavailable

Headers = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
SHORT = 1 << 16
"""A JSON text of up to so many bytes is parsed as it is: Python's objects take at most forty times as many."""
MOST_VALUES = 1 << 20
"""How many numbers, texts, lists and objects a JSON text may have: each takes up to a hundred bytes of memory."""
MOST_FIELDS = 1 << 16
"""How many fields its objects may have: each takes more than a number."""


@dataclass(slots=True)
class Request:
    """What a handler needs of a request; header names are in lower case."""

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
class Reply:
    """What goes back."""

    status: int
    body: bytes
    headers: Headers
    label: str = ""
    """Which policy answered, for the metrics and the access log."""


Handler = Callable[[Request], Reply | Awaitable[Reply]]


def as_json(data: Any, status: int = 200, label: str = "") -> Reply:
    """A reply of plain values."""
    body = orjson.dumps(data)
    return Reply(status, body, [JSON, (b"content-length", b"%d" % len(body))], label)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; UserError if it is none, or if its objects would fill the memory."""
    if len(body) > SHORT:
        _check_amount(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = "; NaN and Infinity are no numbers in JSON" if _has_no_number(body) else ""
        raise UserError(f"the request is not valid JSON: {error}{hint}") from None
    if type(data) is not dict:
        raise UserError("the request must be a JSON object")
    return data


def status_of(error: Exception) -> int:
    """HTTP's number for what went wrong."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, UserError):
        return 400
    return 503 if isinstance(error, Unavailable) else 500


def text_field(message: dict[str, Any], name: str) -> str | None:
    """A word that may be missing; whole numbers are words too, as some clients count their episodes."""
    value = message.get(name)
    if value is None or value == "":
        return None
    if type(value) is int:
        return str(value)
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    if type(value) is not str or len(value) > 256:
        raise UserError(f'"{name}" must be text of at most 256 characters, or a whole number')
    return value


def flag_field(message: dict[str, Any], name: str) -> bool:
    """A true or false that may be missing."""
    return optional_flag(message, name) is True


def optional_flag(message: dict[str, Any], name: str) -> bool | None:
    """A true or false, or None."""
    value = message.get(name)
    if value is not None and type(value) is not bool:
        raise UserError(f'"{name}" must be true or false')
    return value


def object_field(message: dict[str, Any], name: str) -> dict[str, Any]:
    """An object that may be missing."""
    value = message.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise UserError(f'"{name}" must be a JSON object')
    return value


def reward_field(message: dict[str, Any], default: float | None = None) -> float:
    """The reward; whether it is finite is for the endpoint to say."""
    value = message.get("reward", default)
    if type(value) is float:
        return value
    if type(value) is not int:
        raise UserError('"reward" must be a number')
    return float(value)


def _check_amount(body: bytes) -> None:
    """Counts before anything is parsed: 16 MB of empty lists would become 500 MB of them."""
    # Before each value but the first there is one of these; those inside of texts are counted too.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MOST_VALUES:
        raise UserError(
            f"a request may have at most {MOST_VALUES} values in JSON; send fewer observations at once, or send "
            "them as bytes"
        )
    if body.count(b":") > MOST_FIELDS:
        raise UserError(f"a request may have at most {MOST_FIELDS} fields in JSON")


def _has_no_number(body: bytes) -> bool:
    return any(word in body for word in (b"NaN", b"Infinity"))
