"""The user's own Python files that an experiment names: what must go along to another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steppe.specs.experiment import ExperimentSpec, dump

_PLACE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)[:.](?P<name>[A-Za-z_]\w*)")
"""`module:name` or `module.name`."""


def user_modules(spec: ExperimentSpec, folders: list[Path]) -> dict[str, str]:
    """Path below its folder -> text, of every module or package in `folders` that the experiment names."""
    data = dump(spec)
    found: dict[str, str] = {}
    for text in _texts([data["environment"], data["network"], data["agent"]]):
        place = _PLACE.fullmatch(text)
        if place is None:
            continue
        first = place["module"].partition(".")[0]
        for folder in folders:
            if files := _files_of(first, folder):
                found |= files
                break
    return dict(sorted(found.items()))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _files_of(module: str, folder: Path) -> dict[str, str]:
    single, package = folder / f"{module}.py", folder / module
    if single.is_file():
        return {single.name: single.read_text(encoding="utf-8")} | _beside(single)
    if not (package / "__init__.py").is_file():
        return {}
    paths = [path for path in sorted(package.rglob("*.py")) if "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _beside(module: Path) -> dict[str, str]:
    """Modules of the same folder that it imports."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in re.findall(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", text, re.MULTILINE):
            path = module.parent / f"{name}.py"
            if path.is_file() and path != module and path.name not in found:
                found[path.name] = path.read_text(encoding="utf-8")
                waiting.append(path)
    return found
