"""The user's own Python modules that an experiment names, which are sent to its Pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steppe.errors import StorageError, UserError, reason_of
from steppe.platforms.kubernetes.manifests.rendering import LARGEST_CONFIG_MAP
from steppe.specs.experiment import ExperimentSpec, dump
from steppe.specs.loading.validation import Steps

_PLACE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)[:.](?P<name>[A-Za-z_]\w*)")
"""`module:name` or `module.name`."""


Content = str | bytes
"""The content of a file: text if it is UTF-8."""


def user_modules(spec: ExperimentSpec, folders: list[Path]) -> dict[str, Content]:
    """Path below its folder -> content of every module or package in `folders` that the experiment names."""
    found: dict[str, Content] = {}
    for _, text in texts_of(spec):
        place = _PLACE.fullmatch(text)
        if place is None:
            continue
        first = place["module"].partition(".")[0]
        for folder in folders:
            if files := _files_of(first, folder):
                found |= files
                break
    return dict(sorted(found.items()))


def texts_of(spec: ExperimentSpec) -> Iterator[tuple[Steps, str]]:
    """(path, text) of every string in the parts of a spec that can name files and modules of the user."""
    data = dump(spec)
    for part in ("environment", "network", "agent"):
        yield from _texts(data[part], (part,))


def content_of(path: Path) -> Content:
    """The content of a file; a UserError if it is too large to be sent."""
    try:
        if (size := path.stat().st_size) > LARGEST_CONFIG_MAP:
            raise UserError(
                f"{path} is to go along and takes {size / 1e6:.1f} MB, and a cluster takes 1 MB of such files; put it "
                "into an image of your own and name that in kubernetes.image, or mount it by kubernetes.volumes and "
                "kubernetes.volume_mounts"
            )
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason_of(error)}") from error
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def files_below(folder: Path, package: Path) -> dict[str, Content]:
    """Path below `folder` -> content of all files of a package in it, without hidden and compiled ones."""
    below = {path.relative_to(folder): path for path in sorted(package.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): content_of(path)
        for name, path in below.items()
        if not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    }


def _texts(value: Any, way: Steps) -> Iterator[tuple[Steps, str]]:
    if isinstance(value, str):
        yield way, value
    elif isinstance(value, dict | list):
        for step, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(each, (*way, step))


def _files_of(module: str, folder: Path) -> dict[str, Content]:
    single, package = folder / f"{module}.py", folder / module
    if single.is_file():
        return {single.name: content_of(single)} | _beside(single)
    # Data files too, which its modules expect beside them.
    return files_below(folder, package) if (package / "__init__.py").is_file() else {}


def _beside(module: Path) -> dict[str, Content]:
    """The modules of the same folder that a module imports, directly or not."""
    found: dict[str, Content] = {}
    waiting = [module]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in re.findall(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", text, re.MULTILINE):
            path = module.parent / f"{name}.py"
            if path.is_file() and path != module and path.name not in found:
                found[path.name] = path.read_text(encoding="utf-8")
                waiting.append(path)
    return found
