"""Files that accompany an experiment to another machine: compressed, in pieces, with a checksum.

They lie in the folder that the variable STEPPE_CARRIED names. KEY.json holds a file's name in the experiment, its size,
its SHA-256 and the number of pieces; KEY.000, KEY.001 and so on are the pieces. KEY is derived from the name.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from steppe.errors import StorageError, reason_of

FOLDER_VARIABLE = "STEPPE_CARRIED"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Packed:
    """A compressed file."""

    name: str
    """Its name in the experiment."""
    size: int
    sha256: str
    pieces: tuple[bytes, ...]

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the folder by name."""
        key, about = _key(self.name), {"name": self.name, "size": self.size, "sha256": self.sha256}
        description = json.dumps(about | {"pieces": len(self.pieces)}) + "\n"
        pieces = {_piece(key, number): piece for number, piece in enumerate(self.pieces)}
        return {f"{key}.json": description.encode()} | pieces


def pack(path: Path, name: str, piece: int, most: int) -> Packed | None:
    """A file in pieces of `piece` bytes; None if it takes more than `most` bytes even when compressed."""
    compressor, sha256, packed, size = zlib.compressobj(), hashlib.sha256(), bytearray(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                sha256.update(block)
                size += len(block)
                packed += compressor.compress(block)
                if len(packed) > most:
                    return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason_of(error)}") from error
    packed += compressor.flush()
    if len(packed) > most:
        return None
    pieces = tuple(bytes(packed[start : start + piece]) for start in range(0, len(packed), piece))
    return Packed(name, size, sha256.hexdigest(), pieces)


def unpack(name: str) -> bytes | None:
    """The content of an accompanying file of that name; None if there is none."""
    folder, key = os.environ.get(FOLDER_VARIABLE), _key(name)
    if not folder or not (about := Path(folder, f"{key}.json")).is_file():
        return None
    try:
        known = json.loads(about.read_bytes())
        packed = b"".join(Path(folder, _piece(key, number)).read_bytes() for number in range(known["pieces"]))
        data = zlib.decompress(packed)
    except (OSError, ValueError, KeyError, zlib.error) as error:
        raise StorageError(f"{name} did not come along whole ({error}); start the experiment again") from error
    if hashlib.sha256(data).hexdigest() != known["sha256"]:
        raise StorageError(f"{name} was damaged on its way: its checksum does not match; start the experiment again")
    return data


def _key(name: str) -> str:
    return f"file-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _piece(key: str, number: int) -> str:
    return f"{key}.{number:03}"
