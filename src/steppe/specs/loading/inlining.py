"""Replaces the parts of an experiment that are given as the name of a file."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steppe.specs.loading.files import (
    SHIPPED,
    SUFFIXES,
    find_project,
    locate_config,
    not_found,
    read_spec_file,
    shown_path,
)
from steppe.specs.loading.validation import Origins, Steps

SUB_SPECS = ("environment", "agent", "network", "cluster")
MEANT_BY_TEXT = {"environment": "id", "agent": "type"}
"""The field that a bare text sets if it names no file."""


def inline(
    data: dict[str, Any], origins: Origins, folder: Path, written_in: Path | None = None
) -> tuple[dict[str, Any], Origins]:
    """Replaces each part given as text by the content of the file it names, or by an object with that text.

    Paths start at `folder`; `written_in` is the file that contains the text. Paths of an agent's own networks and
    demonstrations start at the agent's file, if it has one.
    """
    data, place = dict(data), (folder, written_in)
    for kind in SUB_SPECS:
        if not isinstance(data.get(kind), str):
            continue
        path = _locate(data[kind], kind, folder, written_in)
        if path is not None:
            data[kind], origins = _read(path, (kind,), origins)
            place = (path.parent, path) if kind == "agent" else place
        elif kind not in MEANT_BY_TEXT or data[kind].endswith(SUFFIXES):
            raise not_found(data[kind], kind, folder, origins.place(kind))
        if isinstance(data[kind], str) and kind in MEANT_BY_TEXT:
            data[kind] = {MEANT_BY_TEXT[kind]: data[kind]}
    if "network" in data:
        data["network"], origins = _unwrapped(data["network"], ("network",), origins)
    if isinstance(data.get("agent"), dict):
        data["agent"], origins = _with_networks(data["agent"], origins, *place)
        data["agent"] = _with_demonstrations(data["agent"], place[0])
    return data, origins


def _with_networks(
    agent: dict[str, Any], origins: Origins, folder: Path, written_in: Path | None
) -> tuple[dict[str, Any], Origins]:
    """The agent with the content of its own networks' files instead of their names."""
    agent = copy.deepcopy(agent)
    for *way, name in list(_networks(agent)):
        part = functools.reduce(operator.getitem, way, agent)
        steps = ("agent", *way, name)
        path = _locate(part[name], "network", folder, written_in)
        if path is None:
            raise not_found(part[name], "network", folder, origins.place(*steps))
        layers, origins = _read(path, steps, origins)
        part[name], origins = _unwrapped(layers, steps, origins)
    return agent, origins


def _with_demonstrations(agent: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The agent with the full path of its demonstrations, so that a run can be resumed from any folder."""
    name = agent.get("demonstrations")
    if not isinstance(name, str) or not name:
        return agent
    places = [folder, find_project(folder)]
    path = next((path for place in places if place is not None and (path := place / name).is_file()), None)
    return agent if path is None else agent | {"demonstrations": str(path.resolve())}


def _networks(agent: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The paths to networks given as text in an agent: its critics' and its baseline's."""
    if isinstance(agent.get("critic_network"), str):
        yield ("critic_network",)
    yield from (("baseline", *steps) for steps in _baseline_networks(agent.get("baseline")))


def _baseline_networks(baseline: Any) -> Iterator[tuple[str, ...]]:
    """The same in a baseline, and in baselines inside it, by the names of their states."""
    for name, value in baseline.items() if isinstance(baseline, dict) else ():
        if name == "network" and isinstance(value, str):
            yield (name,)
        else:
            yield from ((name, *steps) for steps in _baseline_networks(value))


def _locate(text: str, kind: str, folder: Path, written_in: Path | None) -> Path | None:
    """The file that a text names: a name in configs/<kind>s/ first, then a path from `folder` or the project.

    The file that contains the text is never meant: experiment "cartpole" may have environment "cartpole".
    """
    project = find_project(folder)
    configs = [project / "configs" / f"{kind}s"] if project else []
    if written_in is not None and written_in.is_relative_to(SHIPPED):
        # Experiments that come with Steppe name other files that do.
        configs.append(SHIPPED / f"{kind}s")
    # A bare "ppo" must not depend on files that happen to exist; a path or an ending asks for a file.
    asks_for_file = kind not in MEANT_BY_TEXT or text.endswith(SUFFIXES) or (kind == "agent" and "/" in text)
    folders = configs + ([folder, *([project] if project else [])] if asks_for_file else [])
    for place in folders:
        path = locate_config(text, [place])
        if path is not None and (written_in is None or path.resolve() != written_in.resolve()):
            return path
    return None


def _read(path: Path, steps: Steps, origins: Origins) -> tuple[Any, Origins]:
    """Returns (the file's content, `origins` with this file for the part at `steps`)."""
    return read_spec_file(path), origins.with_part(steps, shown_path(path), "")


def _unwrapped(network: Any, steps: Steps, origins: Origins) -> tuple[Any, Origins]:
    """The list in `{"layers": [...]}`, which TOML needs because it has no list at the top of a file."""
    if not isinstance(network, dict) or list(network) != ["layers"]:
        return network, origins
    inner = origins.below(*steps, "layers")
    return network["layers"], origins.with_part(steps, inner.source, inner.path)
