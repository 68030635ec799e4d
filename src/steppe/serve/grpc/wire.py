"""Limits the cost of a protobuf message before it is parsed.

A message of many small fields takes many times its own size once parsed: 16 MB of empty sub-messages become 700 MB. So
the fields are counted first, along the wire format, up to the first one too many.
"""

from __future__ import annotations

from typing import Any

from steppe.errors import UserError

SMALL = 1 << 16
"""Messages of up to so many bytes are parsed without counting: at fifty times their size they take 3 MB."""
MAX_FIELDS = 1024
"""Most fields of a larger message, including those of sub-messages and unknown ones."""
MAX_TYPED_BYTES = 4 << 20
"""Most bytes of a message outside of its fields of plain bytes, which are kept as they are: a number of one byte takes
eight in memory, and becomes a Python object later."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
DEEPEST = 100
"""Deepest nesting of sub-messages, as in protobuf's own parser."""

Layout = dict[int, Any]
"""Field number -> the layout of a sub-message, True for plain bytes, False for anything else."""


def layout(descriptor: Any, done: dict[str, Layout] | None = None) -> Layout:
    """The layout of a message type; a recursive type has a recursive layout."""
    done = {} if done is None else done
    if descriptor.full_name not in done:
        found = done[descriptor.full_name] = {}
        for field in descriptor.fields:
            plain = field.type == field.TYPE_BYTES
            found[field.number] = layout(field.message_type, done) if field.message_type else plain
    return done[descriptor.full_name]


def parse(data: bytes, message: Any, known: Layout, raw_field: str | None = "raw_input_contents") -> Any:
    """Parses a message of a class with the layout `known`; UserError if it is malformed or too expensive.

    `raw_field` is the field of plain bytes that errors recommend.
    """
    from google.protobuf.message import DecodeError

    if len(data) > SMALL:
        _Count(data, raw_field).check(known)
    try:
        return message.FromString(data)
    except (DecodeError, RecursionError):
        raise _malformed() from None


class _Count:
    """Counts the fields of one message."""

    def __init__(self, data: bytes, raw_field: str | None) -> None:
        self._data = data
        self._place = "" if raw_field is None else f" outside of {raw_field}"
        way = "as data.tensor, or in parts" if raw_field is None else f"in {raw_field}"
        self._way_out = f"send numbers {way}"
        self._fields = 0
        self._plain = 0
        """Bytes in fields of plain bytes."""

    def check(self, known: Layout) -> None:
        self._walk(0, len(self._data), known, 0)
        if len(self._data) - self._plain > MAX_TYPED_BYTES:
            raise UserError(f"the message has more than {MAX_TYPED_BYTES} bytes{self._place}; {self._way_out}")

    def _walk(self, at: int, end: int, known: Layout, depth: int) -> None:
        if depth > DEEPEST:
            raise _malformed()
        while at < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise UserError(
                    f"a message of more than {SMALL} bytes may have at most {MAX_FIELDS} fields; {self._way_out}"
                )
            key, at = self._varint(at, end)
            kind = key & 7
            if kind == LENGTH:
                length, at = self._varint(at, end)
                below = known.get(key >> 3)
                if length > end - at:
                    raise _malformed()
                if below is True:
                    self._plain += length
                elif below:
                    self._walk(at, at + length, below, depth + 1)
                at += length
            elif kind == VARINT:
                at = self._varint(at, end)[1]
            elif kind == FIXED64:
                at += 8
            elif kind == FIXED32:
                at += 4
            else:
                raise _malformed()
        if at > end:
            raise _malformed()

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """(number, position after it)."""
        value = shift = 0
        for position in range(at, min(end, at + MAX_VARINT_BYTES)):
            byte = self._data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
            shift += 7
        raise _malformed()


def _malformed() -> UserError:
    return UserError("the message is not a valid protobuf message of this method")
