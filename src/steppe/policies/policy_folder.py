"""A policy on disk: policy.safetensors for programs, and policy.json, which repeats its description, for people.

policy.safetensors holds the tensors and, in its header, the description and one checksum over both: a single rename
replaces the policy, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steppe.errors import StorageError, UserError
from steppe.files.durable import storing, write_atomically
from steppe.files.tensors import check_described, check_version, checksum, parse, serialize_described

FORMAT = "steppe-policy"
VERSION = 1
TENSORS_FILE = "policy.safetensors"
DESCRIPTION_FILE = "policy.json"


class StoredPolicy(NamedTuple):
    """The content of policy.safetensors."""

    file: Path
    description: str
    """JSON as it was written, not validated yet."""
    tensors: dict[str, np.ndarray]
    sha256: str


def write(folder: Path, description: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Writes both files into `folder`; a reader gets the old policy or the new one, never a mixture of them."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(description, sort_keys=True)
    write_atomically(folder / TENSORS_FILE, serialize_described(tensors, text, FORMAT, VERSION))
    manifest = {"format": FORMAT, "version": VERSION, "sha256": checksum(text, tensors), **description}
    write_atomically(folder / DESCRIPTION_FILE, json.dumps(manifest, indent=2) + "\n")


def read(path: Path) -> StoredPolicy:
    """The policy in a folder, beside a policy.json, or in a run folder (its policy/); UserError if it is damaged."""
    file = _policy_folder(path) / TENSORS_FILE
    try:
        data = file.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        metadata, tensors = parse(data)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}; copy or train it again") from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} is not a Steppe policy")
    text, sha256 = check_described(file, metadata, tensors, VERSION, "train")
    return StoredPolicy(file, text, tensors, sha256)


def check_manifest(stored: StoredPolicy, description: dict[str, Any]) -> None:
    """Refuses a policy.json that was edited by hand; one with another checksum remains from an interrupted save."""
    file = stored.file.with_name(DESCRIPTION_FILE)
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise UserError(f"{file} does not describe a policy; export the policy again")
    check_version(file, manifest.get("version"), VERSION)
    if manifest.get("sha256") == stored.sha256 and {name: manifest.get(name) for name in description} != description:
        raise UserError(
            f"{file} does not describe the tensors beside it; export the policy again instead of editing it"
        )


def _policy_folder(path: Path) -> Path:
    folder = path.parent if path.name in (TENSORS_FILE, DESCRIPTION_FILE) else path
    for candidate in (folder, folder / "policy"):
        if (candidate / TENSORS_FILE).is_file():
            return candidate
    raise UserError(
        f"there is no policy in {path}; give a folder with {TENSORS_FILE}, or the folder of a run that has saved one"
    )
