"""Arrays with a description in one safetensors file, deterministic to the byte and with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from steppe.errors import UserError


def serialize(arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """A safetensors file with a sorted header."""
    from safetensors.numpy import save

    # safetensors copies memory from the array's address, so it needs row order.
    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata)
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]), sort_keys=True, separators=(",", ":")).encode()
    # The header is padded with spaces, to keep the arrays aligned.
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[start:]


def serialize_described(arrays: Mapping[str, np.ndarray], description: str, format: str, version: int) -> bytes:
    """A safetensors file whose header holds the format, its version, a description and one checksum over all of it."""
    sha256 = checksum(description, arrays)
    return serialize(arrays, {"format": format, "version": str(version), "description": description, "sha256": sha256})


def check_described(
    shown: str | Path, metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray], version: int, remedy: str
) -> tuple[str, str]:
    """(description, checksum) of the file that messages call `shown`; UserError for another version or checksum."""
    check_version(shown, metadata.get("version"), version)
    description = metadata.get("description", "")
    sha256 = checksum(description, arrays)
    if sha256 != metadata.get("sha256"):
        raise UserError(f"{shown} is damaged: its checksum does not match; copy or {remedy} it again")
    return description, sha256


def check_version(shown: str | Path, found: object, version: int) -> None:
    """Refuses a file of another version."""
    if str(found) != str(version):
        raise UserError(f"{shown} has version {found} but this Steppe reads version {version}; upgrade Steppe")


def parse(data: bytes) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """(metadata, arrays) of a safetensors file; ValueError if it is not one."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, KeyError) as error:
        raise ValueError(str(error)) from error
    return header.get("__metadata__", {}), arrays


def checksum(description: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a description and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(description.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
