"""MessagePack that can neither run code nor fill the memory: no extension types, no pickle, objects counted."""

from __future__ import annotations

import re
from typing import Any

from steppe.errors import MissingExtra

try:
    import msgpack
except ModuleNotFoundError as error:
    raise MissingExtra("an environment behind a network connection", "remote") from error

__all__ = ["Malformed", "pack", "unpack", "unpack_small"]

MOST_OBJECTS = 2**19
"""In one message: numbers, texts, lists and maps. An array of numbers counts as one, whatever its size."""
UNCOUNTED = 64 * 1024
"""Messages of at most this many bytes are not counted: their objects take 4 MB at most."""
UNCOUNTED_ITEMS = 1024
"""Unless a list or map of theirs announces more items, for which memory is allocated in advance."""
SMALL_ITEMS = 16
"""The most items of a list or map in a greeting."""


class Malformed(Exception):
    """The other side broke the protocol; the message is a clause without its subject, such as "sent no text"."""


def pack(message: Any, *, old: bool = False) -> bytes:
    """Encodes a message; `old` writes text and bytes alike, as MessagePack did before 2013."""
    return msgpack.packb(message, use_bin_type=not old)


def unpack(body: Any, *, old: bool = False) -> Any:
    """Decodes `body`, bytes or a view of them; with `old`, text comes as bytes, since both were written alike.

    An object takes up to 64 times its bytes in memory, so more than MOST_OBJECTS are `Malformed`.
    """
    if len(body) <= UNCOUNTED:
        try:
            return _unpack(body, old, max_array_len=UNCOUNTED_ITEMS, max_map_len=UNCOUNTED_ITEMS)
        except _TooLong:
            pass
    _check_objects(body)
    return _unpack(body, old)


def unpack_small(body: bytes) -> Any:
    """Decodes a greeting, which comes from a client that is not known yet."""
    try:
        return _unpack(body, False, max_array_len=SMALL_ITEMS, max_map_len=SMALL_ITEMS)
    except _TooLong:
        raise Malformed("sent more than a greeting holds") from None


class _TooLong(Exception):
    """A list or a map announces more items than allowed."""


def _unpack(body: Any, old: bool, **limits: int) -> Any:
    try:
        return msgpack.unpackb(body, raw=old, strict_map_key=not old, ext_hook=_refuse, **limits)
    except Malformed:
        raise
    # Truncated, trailing or too deeply nested bytes and text that is not UTF-8 each raise another class.
    except (ValueError, TypeError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        if limits and re.search("exceeds max_(array|map)_len", str(error)):
            raise _TooLong from None
        raise Malformed(f"sent something that is not MessagePack ({str(error) or type(error).__name__})") from None


# The number of bytes after the first one of an object of fixed size.
_SIZES = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2}
_SIZES |= {0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZES |= dict.fromkeys((*range(0x80), *range(0xE0, 0x100)), 0) | {0xA0 + size: size for size in range(32)}
# The width of the length of bytes, text or an extension type, and the number of extra bytes after it.
_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LENGTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
# The width of the length of a list or map, and the number of objects in each item.
_ITEMS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_FLOATS = re.compile(rb"(?:\xcb[\x00-\xff]{8})+")


def _check_objects(body: Any) -> None:
    """Counts objects without making any; invalid MessagePack is left to the unpacker."""
    at, end, count, missing = 0, len(body), 0, 1
    while missing and at < end:
        code = body[at]
        at += 1
        count += 1
        missing -= 1
        if code == 0xCB and missing > 8 and (run := _FLOATS.match(body, at + 8, at + 8 + 9 * missing)):
            # The bounds of a large space are thousands of numbers in a row, counted at once.
            at, count, missing = run.end(), count + len(run[0]) // 9, missing - len(run[0]) // 9
        elif (size := _SIZES.get(code)) is not None:
            at += size
        elif code in _LENGTHS:
            width, more = _LENGTHS[code]
            at += width + more + int.from_bytes(body[at : at + width], "big")
        elif code in _ITEMS:
            width, each = _ITEMS[code]
            missing += each * int.from_bytes(body[at : at + width], "big")
            at += width
        elif code < 0xA0:
            missing += (code & 15) * (2 if code < 0x90 else 1)
        if count + missing > MOST_OBJECTS:
            raise Malformed(f"sent a message of more than {MOST_OBJECTS:,} objects")


def _refuse(code: int, data: bytes) -> Any:
    raise Malformed(f"sent an extension type ({code}), which its protocol does not have")
