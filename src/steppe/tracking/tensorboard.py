"""TensorBoard's event files, written without TensorBoard.

A file is a sequence of records, each with one `Event`, a protocol-buffer message. A run needs these of its fields:

    message Event {
      double wall_time = 1;
      int64 step = 2;
      string file_version = 3;     // in the first event
      Summary summary = 5;         // message Summary { repeated Value value = 1; }
      SessionLog session_log = 7;  // message SessionLog { SessionStatus status = 1; }, where START = 1
    }
    message Value { string tag = 1; float simple_value = 2; }
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from steppe.files.durable import storing, write_all

_START = 1


class EventFile:
    """One event file, written unbuffered."""

    def __init__(self, folder: Path, resume_from: int | None) -> None:
        """Begin a new file in `folder`; values of earlier files after the timestep `resume_from` are superseded."""
        now = time.time_ns()
        # The nanoseconds keep files apart that begin within the same second.
        name = f"events.out.tfevents.{now // 10**9:010d}.{socket.gethostname()}.{now % 10**9:09d}.{os.getpid()}"
        self._path = folder / name
        with storing(self._path):
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("xb", buffering=0)
        self._append(_event(now / 1e9, 0, _message(3, b"brain.Event:2")))
        if resume_from is not None:
            self._append(_event(now / 1e9, int(resume_from) + 1, _message(7, _whole_number(1, _START))))

    def write(self, scalars: Mapping[str, float], timestep: int, wall_time: float) -> None:
        """Append one value for each tag."""
        values = b"".join(_message(1, _message(1, tag.encode()) + _float(2, value)) for tag, value in scalars.items())
        self._append(_event(wall_time, timestep, _message(5, values)))

    def close(self) -> None:
        """Nothing can be written afterwards."""
        self._file.close()

    def _append(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        with storing(self._path):
            write_all(self._file, length + _checksum(length) + event + _checksum(event))


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    return _key(1, 1) + struct.pack("<d", wall_time) + _whole_number(2, step) + content


def _whole_number(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _float(field: int, value: float) -> bytes:
    try:
        return _key(field, 5) + struct.pack("<f", value)
    except OverflowError:
        # Too large for 32 bits.
        return _key(field, 5) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _message(field: int, content: bytes) -> bytes:
    """A field whose value is a message or text."""
    return _key(field, 2) + _varint(len(content)) + content


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    """A varint of a number from 0: seven bits a byte, lowest first; the high bit marks all bytes but the last."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of TFRecord files: rotated by 15 bits, plus a constant."""
    import google_crc32c

    value = google_crc32c.value(data)
    rotated = (value >> 15 | value << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)
