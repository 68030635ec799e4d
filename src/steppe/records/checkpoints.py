"""Checkpoints: everything that a run needs to continue, in `checkpoints/<timestep>/{state.safetensors,state.json}`.

A checkpoint is written under a temporary name, synced to the disk and renamed, so that it exists as a whole or not at
all. `state.json` holds the size and sha256 of the arrays and a sha256 of itself, so that loading detects damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import CheckpointError
from steppe.files.durable import remove_leftovers, storage_error, storing, sync_folder, temporary_name, write_synced

FORMAT = "steppe-checkpoint"
VERSION = 1
ARRAYS = "state.safetensors"
MANIFEST = "state.json"
KEPT = 3
"""The number of checkpoints kept for a run."""

_FOLDER = "checkpoints"
# The old checkpoint of a timestep keeps this name until a new one of the same timestep has replaced it.
_REPLACED = ".replaced"
_NAME = re.compile(rf"(0|[1-9]\d*)({re.escape(_REPLACED)})?")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint; `skipped` has a sentence for each newer one that could not be used."""

    timestep: int
    arrays: dict[str, np.ndarray]
    manifest: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)


def save(
    folder: str | os.PathLike[str],
    timestep: int,
    arrays: Mapping[str, np.ndarray],
    manifest: Mapping[str, Any],
    keep: int = KEPT,
) -> Path:
    """Save a checkpoint of the run in `folder`, then delete all but the `keep` newest up to it.

    Arrays may have any shape, () and (0, ...) included. The manifest is kept as JSON: tuples come back as lists.
    """
    checkpoints = Path(folder) / _FOLDER
    path = checkpoints / str(int(timestep))
    contiguous = {name: _storable(name, array) for name, array in arrays.items()}
    with storing(path):
        if not checkpoints.is_dir():
            checkpoints.mkdir(exist_ok=True)  # not the run folder itself, which may have been moved
            sync_folder(checkpoints.parent)
        remove_leftovers(checkpoints)
        _finish_replacements(checkpoints)
        temporary = checkpoints / temporary_name(path.name)
        try:
            temporary.mkdir()
            _write(temporary, int(timestep), contiguous, manifest)
            _publish(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    _prune(checkpoints, int(timestep), keep)
    return path


def load_latest(folder: str | os.PathLike[str]) -> Checkpoint:
    """The newest checkpoint of the run in `folder` that is undamaged."""
    checkpoints = Path(folder) / _FOLDER
    skipped: list[str] = []
    # A writer may prune or replace a listed checkpoint; then the list is made again.
    for _ in range(10):
        skipped = []
        vanished = False
        for path in _candidates(checkpoints):
            try:
                return _load(path, skipped)
            except CheckpointError as damage:
                vanished = vanished or not path.is_dir()
                skipped.append(f"checkpoint {path.name} was skipped: {damage}")
        if not vanished:
            break
    if not skipped:
        raise CheckpointError(f"there is no checkpoint in {checkpoints}; start the experiment without resuming")
    raise CheckpointError(
        f"no checkpoint in {checkpoints} can be used ({'; '.join(skipped)}); start the experiment without resuming"
    )


def latest_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of the newest readable checkpoint, without its arrays; {} if there is none."""
    for path in _candidates(Path(folder) / _FOLDER):
        with contextlib.suppress(CheckpointError, OSError):
            return dict(_read_manifest(path)["manifest"])
    return {}


def list_checkpoints(folder: str | os.PathLike[str]) -> list[int]:
    """The timesteps that have a checkpoint, oldest first; damage is only detected when one is loaded."""
    return sorted({_timestep(path) for path in _candidates(Path(folder) / _FOLDER)})


def size_of(checkpoint: Path) -> int:
    """The bytes of a checkpoint; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in checkpoint.iterdir())
    return 0


def total_size(folder: str | os.PathLike[str]) -> int:
    """The bytes of all checkpoints of a run."""
    return sum(size_of(path) for path in _candidates(Path(folder) / _FOLDER))


def _write(temporary: Path, timestep: int, arrays: dict[str, np.ndarray], manifest: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    file = temporary / ARRAYS
    try:
        save_file(arrays, file, metadata={"format": FORMAT})
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise CheckpointError(f"the state cannot be saved: {error}") from error
        raise storage_error(temporary.parent / str(timestep), int(code[1]), str(error)) from error
    # safetensors makes its files private; the folder has the permissions of the user's umask.
    file.chmod(temporary.stat().st_mode & 0o666)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
    content = {
        "format": FORMAT,
        "version": VERSION,
        "steppe": _steppe_version(),
        "time": time.time(),
        "timestep": timestep,
        "arrays": {"file": ARRAYS, "bytes": size, "sha256": digest},
        "manifest": manifest,
    }
    # Converted to JSON and back, so that the digest is of the content that a reader gets.
    content = json.loads(json.dumps(content, default=_plain))
    content["sha256"] = _digest(content)
    write_synced(temporary / MANIFEST, json.dumps(content, indent=1).encode())
    sync_folder(temporary)


def _publish(temporary: Path, path: Path) -> None:
    aside = path.with_name(path.name + _REPLACED)
    replaces = path.is_dir()
    if replaces:
        path.rename(aside)
    try:
        temporary.rename(path)
    except OSError:
        if replaces:
            aside.rename(path)
        raise
    sync_folder(path.parent)
    if replaces:
        _discard(aside)


def _finish_replacements(checkpoints: Path) -> None:
    for aside in checkpoints.glob(f"*{_REPLACED}"):
        path = aside.with_name(aside.name.removesuffix(_REPLACED))
        if path.is_dir():
            _discard(aside)
        elif _NAME.fullmatch(aside.name):
            aside.rename(path)


def _prune(checkpoints: Path, timestep: int, keep: int) -> None:
    # Later checkpoints are kept: they may be damaged ones that a resume has skipped, or those of another run.
    upto = [path for path in _candidates(checkpoints) if _timestep(path) <= timestep]
    for path in upto[max(keep, 1) :]:
        _discard(path)


def _discard(path: Path) -> None:
    # Renamed first, since a crash while deleting must not leave a partial checkpoint under a valid name.
    doomed = path.with_name(temporary_name(path.name))
    with contextlib.suppress(OSError):
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _candidates(checkpoints: Path) -> list[Path]:
    if not checkpoints.is_dir():
        return []
    found = [path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (_timestep(path), not path.name.endswith(_REPLACED)), reverse=True)


def _timestep(path: Path) -> int:
    return int(path.name.removesuffix(_REPLACED))


def _load(path: Path, skipped: list[str]) -> Checkpoint:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    content = _read_manifest(path)
    file = path / ARRAYS
    try:
        size = file.stat().st_size
        if size != content["arrays"]["bytes"]:
            raise CheckpointError(f"{ARRAYS} has {size} bytes where {content['arrays']['bytes']} were written")
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != content["arrays"]["sha256"]:
            raise CheckpointError(f"the sha256 of {ARRAYS} is not the one that was written: its bytes have changed")
        arrays = load_file(file)
    except OSError as error:
        raise CheckpointError(f"{ARRAYS} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{ARRAYS} cannot be understood: {error}") from error
    return Checkpoint(content["timestep"], arrays, content["manifest"], path, skipped)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} is not JSON: its bytes have changed or are missing") from error
    written = content.pop("sha256", None) if isinstance(content, dict) else None
    if written is None or written != _digest(content):
        raise CheckpointError(f"the sha256 in {MANIFEST} is not that of its content: its bytes have changed")
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        found = f"{content.get('format')} {content.get('version')}"
        raise CheckpointError(f"it is in format {found}, and this Steppe reads {FORMAT} {VERSION}")
    if content.get("timestep") != _timestep(path):
        raise CheckpointError(f"{MANIFEST} is of timestep {content.get('timestep')}")
    arrays, manifest = content.get("arrays"), content.get("manifest")
    if not isinstance(manifest, dict) or not isinstance(arrays, dict) or not {"bytes", "sha256"} <= arrays.keys():
        raise CheckpointError(f"{MANIFEST} lacks what it should say about the arrays or the run")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _storable(name: str, array: Any) -> np.ndarray:
    # safetensors copies memory from the array's address, so it needs row order.
    result = np.require(array, requirements="C")
    if result.dtype.kind not in "biufV" or result.dtype.hasobject:
        raise CheckpointError(f'"{name}" has numbers of type {result.dtype}, which a checkpoint cannot hold')
    return result.astype(result.dtype.newbyteorder("="), copy=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise CheckpointError(f"the manifest holds a {type(value).__name__}, which JSON cannot")


@cache
def _steppe_version() -> str:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("steppe")
    return "unknown"
