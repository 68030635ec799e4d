"""The wire protocol, version 1: MessagePack frames over TCP, sent strictly in turn.

docs/remote-environments.md describes every message, for servers in any language.
"""

from __future__ import annotations

import contextlib
import math
import operator
import reprlib
import socket
import struct
import sys
import time
from typing import Any

import numpy as np

from steppe.errors import SpecError, reason_of
from steppe.net.messagepack import Malformed, pack, unpack
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part, Space, action_dtype, from_json

NAME = "steppe-env"
VERSION = 1
HEADER = struct.Struct(">I")
FIRST_LIMIT = 64 * 1024
"""The longest message, in bytes, until the spaces are known."""
LONGEST_ERROR = 4000
"""The longest sentence of an error, in characters."""
DESCRIPTION_LIMIT = 4 * 1024 * 1024
"""The longest description of spaces, each of whose bounds may be a number of 9 bytes."""
LARGEST = 1024**3
"""The longest message that the two sides may agree on."""
MOST_CHOICES = 2**24
"""The most options of a MultiDiscrete space, all choices together."""
MOST_DIMENSIONS = 32
ROOM = 16 * 1024
"""The bytes of a message beside its arrays: field names, shapes, the text of an error."""
LARGEST_COUNT = 2**63 - 1
"""The largest whole number in a message, that of an int64."""
DTYPES = {"bool": np.dtype("?"), "uint8": np.dtype("u1"), "int32": np.dtype("<i4"), "float32": np.dtype("<f4")}
"""The types of arrays on the wire, little-endian."""
BOX_DTYPES = ("float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""The types that the numbers of a Box may have in the environment."""
# Asking a dtype for its name takes longer than sending a small array.
_NAMES = {np.dtype(name): name for name in DTYPES}
_SWAPPED = sys.byteorder == "big"

INFINITY = float("inf")

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The connection ended or broke; the message is a clause that says how."""


class TooSlow(Exception):
    """No message, or only a part of one, arrived in time."""


class Channel:
    """One side of a connection: sends a message, receives a message, in turn."""

    def __init__(self, sock: socket.socket) -> None:
        self.limit = FIRST_LIMIT
        self._sock = sock
        self._buffer = bytearray(FIRST_LIMIT)
        self._needed = HEADER.size
        self._timeout: float | None = -1.0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)

    def send(self, message: Message, timeout: float | None = None) -> None:
        """Sends a whole message in one call."""
        body = pack(message)
        try:
            self._wait_at_most(timeout)
            self._sock.sendall(HEADER.pack(len(body)) + body)
        except TimeoutError:
            raise TooSlow from None
        except OSError as error:
            raise ChannelClosed(reason_of(error)) from None

    def receive(self, timeout: float | None = None) -> Message:
        """The next message, within `timeout` seconds altogether and of at most `limit` bytes."""
        deadline = INFINITY if timeout is None else time.monotonic() + timeout
        filled, needed, is_known = 0, HEADER.size, False
        while filled < needed:
            # One call reads header and body of a small message, since nobody sends two in a row.
            count = self._read_from(filled, timeout if not filled or timeout is None else deadline - time.monotonic())
            if not count:
                raise ChannelClosed("it was closed" if not filled else "it was closed in the middle of a message")
            filled += count
            if not is_known and filled >= HEADER.size:
                is_known, needed = True, self._measure()
        if filled > needed:
            raise Malformed("sent a message before it was its turn")
        message = unpack(memoryview(self._buffer)[HEADER.size : needed])
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise Malformed('sent a message without an "op"')
        return message

    def close(self) -> None:
        """Ends the connection; may be called again."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def hang_up(self, seconds: float = 1.0) -> None:
        """Ends the sending side and waits for the other to close: closing with unread bytes could destroy sent ones."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not socket.socket.recv(self._sock, FIRST_LIMIT):
                    return

    def stop_receiving(self) -> None:
        """Makes `receive` in another thread return; a message that is being sent is still sent."""
        with contextlib.suppress(OSError):
            # The method of an encrypted socket would continue unencrypted.
            socket.socket.shutdown(self._sock, socket.SHUT_RD)

    def _read_from(self, filled: int, timeout: float | None) -> int:
        """Reads into the buffer behind the filled part; returns the number of bytes."""
        if timeout is not None and timeout <= 0:
            raise TooSlow
        if filled >= len(self._buffer):
            # Grows with the received bytes, not the announced ones: a length costs nothing to send.
            self._buffer.extend(bytes(min(len(self._buffer), self._needed - len(self._buffer))))
        try:
            self._wait_at_most(timeout)
            return self._sock.recv_into(memoryview(self._buffer)[filled:])
        except TimeoutError:
            raise TooSlow from None
        except OSError as error:
            raise ChannelClosed(reason_of(error)) from None

    def _wait_at_most(self, timeout: float | None) -> None:
        if timeout != self._timeout:  # each call is a system call, which costs time in every step
            self._sock.settimeout(timeout)
            self._timeout = timeout

    def _measure(self) -> int:
        """The size of the frame whose header is in the buffer, checked against the limit."""
        (length,) = HEADER.unpack_from(self._buffer)
        if length > self.limit:
            raise Malformed(f"announced a message of {length:,} bytes where at most {self.limit:,} make sense")
        self._needed = HEADER.size + length
        return self._needed


def to_wire(array: np.ndarray) -> Message:
    """An array of one of DTYPES as a map: dtype, shape, raw bytes in row order."""
    name = _NAMES[array.dtype]
    if _SWAPPED:
        array = array.astype(DTYPES[name])
    return {"dtype": name, "shape": array.shape, "data": array.tobytes()}


def read_array(message: Message, field: str, out: np.ndarray) -> None:
    """Writes the array in a field of a message into `out`, whose dtype and shape it must have exactly."""
    value = message.get(field)
    if not isinstance(value, dict):
        raise Malformed(f'sent "{message["op"]}" without the array "{field}"')
    name, shape, data = value.get("dtype"), value.get("shape"), value.get("data")
    if name != _NAMES[out.dtype] or shape != list(out.shape):
        raise Malformed(
            f'sent "{field}" as {_shown(name)} {_shown(shape)} where {out.dtype.name} {list(out.shape)} was agreed on'
        )
    if not isinstance(data, bytes) or len(data) != out.nbytes:
        raise Malformed(f'sent "{field}" with other than the {out.nbytes} bytes that its shape takes')
    # Bytes are converted to booleans, any but 0 to true; NumPy's own booleans may only be 0 or 1.
    out[...] = np.ndarray(out.shape, DTYPES[name] if name != "bool" else np.uint8, data)


def read_count(
    message: Message, field: str, *, least: int = 1, most: int = LARGEST_COUNT, optional: bool = False
) -> Any:
    """The whole number in a field of a message; None if it is optional and missing."""
    value = message.get(field)
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        until = "on" if most == LARGEST_COUNT else f"to {most}"
        raise Malformed(f'sent "{field}" as {_shown(value)} where a whole number from {least} {until} belongs')
    return value


def read_text(message: Message, field: str, longest: int = 4000) -> str:
    """The text in a field of a message, in one printable line."""
    value = message.get(field)
    if not isinstance(value, str):
        raise Malformed(f'sent "{field}" as {_shown(value)} where text belongs')
    return printable(value[:longest])


def printable(text: str) -> str:
    """Text from outside as one line, without control characters for a terminal or line breaks."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def read_space(message: Message, field: str) -> Space:
    """The space in a field of a message, all of whose numbers are checked before NumPy gets them."""
    value = message.get(field)
    try:
        space = from_json(value if isinstance(value, dict) else {})
        is_valid = _is_valid(space)
    # A SpecError names the NaN bound or unknown type; other exceptions come from malformed data.
    except SpecError as error:
        raise Malformed(f'sent "{field}" as {_shown(value)}, which is no space: {error}') from None
    except Exception:
        is_valid = False
    is_observed = field == "observation_space"
    if not is_valid or (is_observed and isinstance(space, Box) and space.dtype not in ("uint8", "float32")):
        raise Malformed(f'sent "{field}" as {_shown(value)}, which is no space')
    return space


def limits_for(observation: Space, action: Space, count: int) -> tuple[int, int]:
    """(the longest request, the longest answer) about `count` environments, in bytes."""

    taken = count * math.prod(action.shape) * DTYPES[action_dtype(action)].itemsize
    seen = count * math.prod(observation.shape) * DTYPES[observation.dtype].itemsize
    # The successor and the first observation of the next episode; reward and score (4 bytes each), and three flags.
    return taken + ROOM, 2 * seen + 11 * count + ROOM


def _is_valid(space: Space) -> bool:
    """Whether a space from outside is valid: sizes are numbers, and bounds and parts fit."""
    match space:
        case Discrete():
            return _is_size(space.n) and abs(space.start) + space.n < 2**31
        case MultiDiscrete():
            # A policy has one output for each option, so their sum must be sensible too.
            return bool(space.nvec) and all(_is_size(n) for n in space.nvec) and sum(space.nvec) <= MOST_CHOICES
    if len(space.shape) > MOST_DIMENSIONS or not all(map(_is_size, space.shape)):
        return False
    size = math.prod(space.shape)
    return (
        size <= LARGEST
        and space.dtype in BOX_DTYPES
        and all(len(side) in (1, size) for side in (space.low, space.high))
        and _are_bounds(space.low, space.high)
        and all(_is_part(part) for part in space.parts)
        and all(0 <= part.start <= size - part.size for part in space.parts)
    )


def _is_part(part: Part) -> bool:
    is_flat = not (isinstance(part.space, Box) and part.space.parts)
    return isinstance(part.name, str) and type(part.start) is int and is_flat and _is_valid(part.space)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST


def _are_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> bool:
    """Whether each low bound is at most the high one; a single number stands for all."""
    if max(low) == INFINITY or min(high) == -INFINITY:
        return False
    if len(low) == len(high):
        return all(map(operator.le, low, high))
    return max(low) <= min(high)


def _keep_alive(sock: socket.socket) -> None:
    """Turns on TCP keepalive, since a learner may be silent for long."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 3, 8, 40, 60


def _shown(value: Any) -> str:
    """The beginning of a value from outside, for an error message, however large or deep the value is."""
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
