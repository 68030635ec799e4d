"""Finding and reading spec files: JSON, YAML and TOML."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steppe.errors import SpecError
from steppe.specs.loading.limited_reading import MEGABYTE, read_small
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import Origins, Steps

EFFECTIVE = "effective"
"""The section of experiment.json with the settings a run really has; it is no field and has no effect on training."""
SUFFIXES = (".json", ".yaml", ".yml", ".toml")
PROJECT_FILE = "steppe.json"
OLD_PROJECT_FILE = ".tensorforce.json"
"""The old tfcli's project file."""
MOST_BYTES = 8 * MEGABYTE
MOST_BYTES_BUT_JSON = 1 * MEGABYTE
"""The size limit of YAML and TOML files: reading YAML takes several seconds per megabyte."""
DEEPEST = 100
"""The largest nesting depth of the values in a spec file."""
MOST_YAML_VALUES = 100_000
"""The largest number of values in a YAML file with its aliases expanded."""
SHIPPED = Path(__file__).parents[2] / "experiments" / "templates"
"""The configs that come with Steppe and that `steppe init` writes."""
_ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


def find_project(start: Path) -> Path | None:
    """The nearest folder from `start` upward that holds steppe.json, or the old client's file, or None."""
    start = start.absolute()
    names = (PROJECT_FILE, OLD_PROJECT_FILE)
    return next((path for path in (start, *start.parents) if any((path / name).is_file() for name in names)), None)


def read_project(root: Path) -> Any:
    """A project's fields, from steppe.json or, if there is none, from the old client's file."""
    if (root / PROJECT_FILE).is_file():
        return read_spec_file(root / PROJECT_FILE)
    about = read_spec_file(root / OLD_PROJECT_FILE)
    if not isinstance(about, dict):
        return about
    return {name: about[name] for name in ("name", "remote_id") if isinstance(about.get(name), str)}


def find_config(name: str | Path, kind: str, start: Path) -> Path:
    """The spec file called `name`: a path from `start` or from the project, else a name in configs/<kind>s/, else the
    name of an experiment that comes with Steppe.

    The ending (.json, .yaml, .yml or .toml) may be left out.
    """
    path = locate_config(name, folders_for(kind, start)) or _shipped(name, kind)
    if path is None:
        raise not_found(name, kind, start)
    return path


def _shipped(name: str | Path, kind: str) -> Path | None:
    """The experiment of this name that `steppe init` would write."""
    is_name = Path(name).name == str(name)
    return locate_config(name, [SHIPPED / "experiments"]) if kind == "experiment" and is_name else None


def folders_for(kind: str, start: Path) -> list[Path]:
    """The folders in which specs of a kind are looked for, first to last."""
    project = find_project(start)
    return [start] if project is None else list(dict.fromkeys([start, project, project / "configs" / f"{kind}s"]))


def locate_config(name: str | Path, folders: Iterable[Path]) -> Path | None:
    """The first spec file called `name` in the folders, or None."""
    if Path(name).name in ("", ".."):
        return None
    for folder in folders:
        for path in (folder / name, *(folder / f"{name}{suffix}" for suffix in SUFFIXES)):
            if path.suffix in SUFFIXES and _is_file(path):
                return path
    return None


def not_found(name: str | Path, kind: str, start: Path, place: str = "") -> SpecError:
    """The error for a missing file, with the folders searched and the nearest existing name."""
    # pathlib raises if a name is too long. A plain word such as "demo" is a name even if a folder is called so.
    if Path(name).suffix in SUFFIXES and os.path.isdir(start / name):  # noqa: PTH112
        return SpecError(f"{name}{place} is a folder, no {kind} file; give a file in it, or a name")
    if _is_file(start / name):
        return SpecError(f"{name}{place} is no spec file; its name must end in {_ENDINGS}")
    base, has_ending = Path(name).name, Path(name).suffix in SUFFIXES
    folders = list(dict.fromkeys((folder / name).parent for folder in folders_for(kind, start)))
    folders_of_names = [*folders, *([SHIPPED / "experiments"] if kind == "experiment" else [])]
    names = [
        path.name if has_ending else path.stem for folder in reversed(folders_of_names) for path in _spec_files(folder)
    ]
    looked_for = base if has_ending else f"{base}.json (or .yaml, .yml, .toml)"
    where = " and ".join(shown_path(folder) for folder in folders)
    return SpecError(f'no {kind} "{name}"{place}: looked for {looked_for} in {where}{did_you_mean(base, names)}')


def read_spec_file(path: str | Path) -> Any:
    """The file's content as plain JSON values; a broken file is a SpecError with its line and column."""
    path = Path(path)
    limit = MOST_BYTES_BUT_JSON if path.suffix in SUFFIXES[1:] else MOST_BYTES
    try:
        text = read_small(path, limit).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise SpecError(f"{shown_path(path)} is not text in UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot read {shown_path(path)}: {reason[:1].lower()}{reason[1:]}") from None
    parse = {".yaml": _parse_yaml, ".yml": _parse_yaml, ".toml": _parse_toml}.get(path.suffix, _parse_json)
    try:
        data = parse(text, shown_path(path))
        check_plain(data, Origins(shown_path(path)))
    except RecursionError:
        raise SpecError(f"{shown_path(path)} is nested too deeply to be read") from None
    if isinstance(data, dict):
        data.pop("$schema", None)  # only editors read it
    return data


def check_plain(value: Any, origins: Origins, steps: Steps = (), *, rule: str = "write it in quotes") -> None:
    """Refuses values that JSON cannot represent, since a run saves its spec as JSON; `rule` ends the error."""
    if len(steps) > DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SpecError(f"wrong field name {key}{origins.place(*steps)}; {rule}")
            check_plain(inner, origins, (*steps, key), rule=rule)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_plain(inner, origins, (*steps, index), rule=rule)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"wrong value {value}{origins.place(*steps)}; it must be a finite number")
    elif not (value is None or isinstance(value, str | int | float)):
        raise SpecError(f"wrong value {value}{origins.place(*steps)}; {rule}")


def shown_path(path: str | Path) -> str:
    """A path as the user would type it: relative to the current folder if it lies below it."""
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the disk names no file
        return False


def _spec_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name != PROJECT_FILE)


def _parse_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(pairs, source))
    except json.JSONDecodeError as error:
        reason = _json_reason(text[: error.pos].rstrip(), text[error.pos :], error.msg)
        raise _broken("JSON", source, text, error.lineno, error.colno, reason) from None
    except ValueError:  # Python refuses to read numbers of thousands of digits
        raise SpecError(f"broken JSON in {source}: a number in it has too many digits") from None


_JSONREASONS = {
    "Expecting ',' delimiter": "a comma is missing before this",
    "Expecting ':' delimiter": "a colon is missing before this",
    "Expecting value": "a value is missing here",
    "Expecting property name": "a field name in double quotes is missing here",
    "Unterminated string": "this text has no closing quote",
    "Invalid control character": "a line break or tab stands inside text",
    "Extra data": "something follows the end",
}


def _json_reason(before: str, rest: str, message: str) -> str:
    """The mistake in a JSON file, from the text before and after the place where reading stopped."""
    if not rest.strip():
        return "the file ends too early"
    if rest.startswith(("//", "/*", "#")):
        return "JSON has no comments"
    if rest.startswith("'"):
        return "text takes double quotes"
    if "trailing comma" in message or (before.endswith(",") and rest.startswith(("}", "]", ","))):
        return "there is a comma too many"
    for word, right in (("True", "true"), ("False", "false"), ("None", "null")):
        if rest.startswith(word):
            return f"{word} is written {right}"
    return next((reason for start, reason in _JSONREASONS.items() if message.startswith(start)), message)


def _without_repeats(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise SpecError(f'field "{repeated}" is written twice in {source}; keep one of the two')
    return data


def _parse_yaml(text: str, source: str) -> Any:
    import yaml

    try:
        loader = _yaml_loader()(text)
        try:
            node = loader.get_single_node()
            _check_aliases(node, source)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _broken("YAML", source, text, line, column, error.problem or error.context or "cannot be read") from None
    except yaml.YAMLError as error:
        raise SpecError(f"broken YAML in {source}: {' '.join(str(error).split())}") from None


def _check_aliases(root: Any, source: str) -> None:
    """Refuses a file whose aliases would expand to too many values; visits each node once."""
    known: dict[int, tuple[int, int]] = {}
    open_nodes: set[int] = set()

    def measure(node: Any, depth: int) -> tuple[int, int]:
        """Returns (the number of values the node stands for, their nesting depth)."""
        if id(node) in open_nodes:
            raise SpecError(f"{source} has an alias that stands for itself; write out what it means")
        if (measured := known.get(id(node))) is not None:
            if depth + measured[1] > DEEPEST:
                raise RecursionError
            return measured
        if depth > DEEPEST:
            raise RecursionError
        open_nodes.add(id(node))
        values, height = 1, 1
        # The value of a scalar is text, that of a list nodes, that of a mapping pairs of nodes.
        for item in node.value if isinstance(node.value, list) else ():
            for inner in item if isinstance(item, tuple) else (item,):
                below = measure(inner, depth + 1)
                values, height = values + below[0], max(height, below[1] + 1)
        open_nodes.remove(id(node))
        if values > MOST_YAML_VALUES:
            raise SpecError(
                f"{source} has aliases that stand for more than {MOST_YAML_VALUES:,} values; write fewer of them"
            )
        known[id(node)] = values, height
        return known[id(node)]

    if root is not None:
        measure(root, 0)


def _yaml_loader() -> Any:
    """A safe loader with JSON's idea of scalars: 1e-3 is a number (YAML 1.1 reads text) and a date is text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in seen:
                    problem = f'field "{key.value}" is written twice'
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_BETWEEN_KEYS = re.compile(r"[^\w.\- \t]+")


def _parse_toml(text: str, source: str) -> Any:
    import tomllib

    # The time of Python's parser is quadratic in the parts of a key.
    if any(words.count(".") > DEEPEST for words in _BETWEEN_KEYS.split(_QUOTED.sub("q", text))):
        raise RecursionError
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", message)
        reason = message[: place.start()] if place else message
        lines = text.splitlines() or [""]
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (len(lines), len(lines[-1]) + 1)
        raise _broken("TOML", source, text, line, column, reason[0].lower() + reason[1:]) from None


def _broken(language: str, source: str, text: str, line: int, column: int, reason: str) -> SpecError:
    lines = text.splitlines()
    content = lines[line - 1].strip() if line <= len(lines) else ""
    quote = f": {content[:80]}" if content else ""
    return SpecError(f"broken {language} in {source} at line {line}, column {column}: {reason}{quote}")
