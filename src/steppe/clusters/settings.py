"""The cloud project that a project is linked to by `steppe init -r`; the key itself stays where it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from steppe.errors import UserError, reason_of
from steppe.specs.loading.files import find_project, read_project

KEY_FIELD = "service_account_key"


@dataclass(frozen=True)
class CloudLink:
    """The cloud settings in steppe.json."""

    project: str | None = None
    key: str | None = None
    """The path of the service account's key file; without one the default credentials of this machine are used."""


def linked(start: Path) -> CloudLink:
    """The link of the project that contains `start`; empty if there is none."""
    root = find_project(start)
    about = read_project(root) if root else {}
    if not isinstance(about, dict):
        return CloudLink()
    key = about.get(KEY_FIELD)
    return CloudLink(about.get("remote_id"), str((root or start) / Path(key).expanduser()) if key else None)


def checked_key(path: str | Path) -> Path:
    """The absolute path of a service account's key; UserError if the file is not one."""
    path = Path(path).expanduser().absolute()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the service account's key {path}: {reason_of(error)}; check the path") from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("type") != "service_account" or "private_key" not in content:
        raise UserError(
            f"{path} is no key of a service account; make one in Google's console under IAM, Service accounts, Keys "
            "(JSON)"
        )
    return path
