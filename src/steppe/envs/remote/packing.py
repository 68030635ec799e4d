"""MessagePack, and nothing that could run code or fill the memory: no extension types, no pickle."""

from __future__ import annotations

from typing import Any

from steppe.errors import MissingExtra

try:
    import msgpack
except ModuleNotFoundError as error:
    raise MissingExtra("an environment behind a network connection", "remote") from error

__all__ = ["Malformed", "pack", "unpack"]


class Malformed(Exception):
    """The other side sent something that its protocol does not allow; a clause without a subject says what."""


def pack(message: Any, *, old: bool = False) -> bytes:
    """`old` writes text and bytes alike, as MessagePack had it before 2013."""
    return msgpack.packb(message, use_bin_type=not old)


def unpack(body: Any, *, old: bool = False) -> Any:
    """What `body` (bytes or a view of them) holds; with `old`, text comes as bytes, since both were written alike."""
    try:
        return msgpack.unpackb(body, raw=old, strict_map_key=not old, ext_hook=_refuse)
    except Malformed:
        raise
    # Truncated, trailing or too deeply nested bytes, and text that is not UTF-8: each has a class of its own.
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise Malformed(f"sent something that is not MessagePack ({str(error) or type(error).__name__})") from None


def _refuse(code: int, data: bytes) -> Any:
    raise Malformed(f"sent an extension type ({code}), which its protocol does not have")
