"""The wire protocol, version 1: frames of MessagePack over TCP, spoken strictly in turn.

docs/remote-environments.md describes it message by message, for servers in any language.
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
"""The longest message, in bytes, until spaces are known."""
LONGEST_ERROR = 4000
"""In characters: the sentence of an error."""
DESCRIPTION_LIMIT = 4 * 1024 * 1024
"""The longest description of spaces: each bound may be a number of its own, of 9 bytes."""
LARGEST = 1024**3
"""The largest message that two sides may agree on."""
MOST_CHOICES = 2**24
"""Of a space of several choices, all together."""
MOST_DIMENSIONS = 32
ROOM = 16 * 1024
"""What a message may take beside its arrays: field names, shapes, the text of an error."""
LARGEST_COUNT = 2**63 - 1
"""The largest whole number in a message: more is not an int64."""
DTYPES = {"bool": np.dtype("?"), "uint8": np.dtype("u1"), "int32": np.dtype("<i4"), "float32": np.dtype("<f4")}
"""The numbers that arrays on the wire are made of, little-endian."""
BOX_DTYPES = ("float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""What the numbers of a box may be to the environment itself."""
# Asking a dtype for its name takes longer than sending a small array.
_NAMES = {np.dtype(name): name for name in DTYPES}
_SWAPPED = sys.byteorder == "big"

INFINITY = float("inf")

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The connection ended or broke; a clause says how."""


class TooSlow(Exception):
    """Nothing, or not all of a message, came in time."""


class Channel:
    """One side of a connection: sends a message, receives a message, in turn."""

    def __init__(self, sock: socket.socket) -> None:
        self.limit = FIRST_LIMIT
        self._sock = sock
        self._buffer = bytearray(FIRST_LIMIT)
        self._needed = HEADER.size
        self._timeout: float | None = -1.0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_dead_peers(sock)

    def send(self, message: Message, timeout: float | None = None) -> None:
        """The whole message in one call."""
        body = pack(message)
        try:
            self._wait_at_most(timeout)
            self._sock.sendall(HEADER.pack(len(body)) + body)
        except TimeoutError:
            raise TooSlow from None
        except OSError as error:
            raise ChannelClosed(reason_of(error)) from None

    def receive(self, timeout: float | None = None) -> Message:
        """The next message; `timeout` seconds are for all of it. At most `limit` bytes are taken."""
        deadline = INFINITY if timeout is None else time.monotonic() + timeout
        filled, needed, is_known = 0, HEADER.size, False
        while filled < needed:
            # One call brings header and body of a small message, since nobody speaks twice in a row.
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
        """Ends the sending and waits for the other's end: closing with unread bytes could destroy what was sent."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not socket.socket.recv(self._sock, FIRST_LIMIT):
                    return

    def stop_receiving(self) -> None:
        """Lets `receive` in another thread come to its end; what is being sent is still sent."""
        with contextlib.suppress(OSError):
            # Not the method of an encrypted socket, which would go on in the clear.
            socket.socket.shutdown(self._sock, socket.SHUT_RD)

    def _read_from(self, filled: int, timeout: float | None) -> int:
        """Reads into the buffer behind what is filled; how many bytes came."""
        if timeout is not None and timeout <= 0:
            raise TooSlow
        if filled >= len(self._buffer):
            # As it comes, not as it was announced: a length costs nothing to send.
            self._buffer.extend(bytes(min(len(self._buffer), self._needed - len(self._buffer))))
        try:
            self._wait_at_most(timeout)
            return self._sock.recv_into(memoryview(self._buffer)[filled:])
        except TimeoutError:
            raise TooSlow from None
        except OSError as error:
            raise ChannelClosed(reason_of(error)) from None

    def _wait_at_most(self, timeout: float | None) -> None:
        if timeout != self._timeout:  # each call asks the system, which counts at every step
            self._sock.settimeout(timeout)
            self._timeout = timeout

    def _measure(self) -> int:
        """The size of the frame whose header is in the buffer."""
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
    # Bytes become booleans by conversion: any but 0 is true, where NumPy itself would only know 0 and 1.
    out[...] = np.ndarray(out.shape, DTYPES[name] if name != "bool" else np.uint8, data)


def read_count(
    message: Message, field: str, *, least: int = 1, most: int = LARGEST_COUNT, optional: bool = False
) -> Any:
    """The whole number in a field of a message; None if it may be left out and is."""
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
    """Text from outside in one line, without what could move a terminal's cursor or look like a line of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def read_space(message: Message, field: str) -> Space:
    """The space in a field of a message, each of its numbers checked before NumPy sees one."""
    value = message.get(field)
    try:
        space = from_json(value if isinstance(value, dict) else {})
        is_sound = _is_sound(space)
    # The sentences of these say where a bound is NaN, or which type is unknown; all others are about odd data.
    except SpecError as error:
        raise Malformed(f'sent "{field}" as {_shown(value)}, which is no space: {error}') from None
    except Exception:
        is_sound = False
    is_seen = field == "observation_space"
    if not is_sound or (is_seen and isinstance(space, Box) and space.dtype not in ("uint8", "float32")):
        raise Malformed(f'sent "{field}" as {_shown(value)}, which is no space')
    return space


def limits_for(observation: Space, action: Space, count: int) -> tuple[int, int]:
    """(the longest request, the longest answer) about `count` environments, in bytes."""

    taken = count * math.prod(action.shape) * DTYPES[action_dtype(action)].itemsize
    seen = count * math.prod(observation.shape) * DTYPES[observation.dtype].itemsize
    # Each environment's successor, and the first observation of its next episode; reward and score, and three flags.
    return taken + ROOM, 2 * seen + 11 * count + ROOM


def _is_sound(space: Space) -> bool:
    """Whether a space from outside can be counted on: sizes that are numbers, bounds and parts that fit."""
    match space:
        case Discrete():
            return _is_size(space.n) and abs(space.start) + space.n < 2**31
        case MultiDiscrete():
            # One output of a policy for each choice: their sum must be sensible, too.
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
    return isinstance(part.name, str) and type(part.start) is int and is_flat and _is_sound(part.space)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST


def _are_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> bool:
    """Whether something lies between the bounds everywhere; one bound may stand for all."""
    if max(low) == INFINITY or min(high) == -INFINITY:
        return False
    if len(low) == len(high):
        return all(map(operator.le, low, high))
    return max(low) <= min(high)


def _notice_dead_peers(sock: socket.socket) -> None:
    """Lets the system ask now and then whether the other side still exists, since a learner may be silent for long."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 3, 8, 40, 60


def _shown(value: Any) -> str:
    """A value from outside in an error message: only its beginning is written out, however large or deep it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
