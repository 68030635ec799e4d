"""The settings of a run in groups: those that apply to it, with given ones distinguished from defaults.

The input is the raw experiment.json, which may be of another version or damaged. From the beginning of a run on, it has
a section `effective`: see docs/run-folder.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steppe.specs.loading.files import EFFECTIVE

Json = Mapping[str, Any]

_FOR_RUN_MODES = {"distributed": ("distributed",), "asynchronous": ("async",), "ray": ("distributed", "async")}
"""Section of an experiment -> its run modes."""
_LIMITS = ("total_timesteps", "episodes", "stop_at_return")
_OF_ENVIRONMENT = ("num_envs", "max_timesteps_per_episode", "repeat_actions")
"""Fields of an experiment that the effective settings of its environment include."""
_WHOLE = ("observation", "action")
"""Objects that take one line."""
_NO_SETTINGS = ("name", "schema_version")
_PARTS = ("agent", "network", "environment")


@dataclass(frozen=True)
class RunSetting:
    """One setting: `name` is its path within its group."""

    name: str
    value: Any
    is_given: bool
    """Whether the experiment sets it; False for a default, or if that is unknown."""


@dataclass(frozen=True)
class SettingGroup:
    """The settings of the agent, the network, the environment, the experiment, or a section."""

    name: str
    settings: tuple[RunSetting, ...]


def knows_defaults(experiment: Json) -> bool:
    """Whether the file has all defaults, as it does since version 0.1 once the run has begun."""
    return bool(_object(experiment.get(EFFECTIVE)))


def groups_of(experiment: Json, policy: Json | None = None, *, everything: bool = False) -> list[SettingGroup]:
    """The groups that are not empty.

    Without `everything` they omit settings that are not set, or that have no effect with this run mode, platform and
    agent, unless they were given. `policy` is policy.json, whose network is used if the experiment has none.
    """
    effective = _object(experiment.get(EFFECTIVE))
    given = {str(path) for path in _list(effective.get("given"))}
    idle = {str(path) for path in _list(effective.get("without_effect"))}

    def is_shown(path: str, value: Any) -> bool:
        return everything or path in given or not (_is_unset(value) or path in idle)

    def group(name: str, rows: Iterator[tuple[str, Any]], prefix: str) -> SettingGroup:
        settings = (
            RunSetting(path, value, f"{prefix}{path}" in given)
            for path, value in rows
            if is_shown(f"{prefix}{path}", value)
        )
        return SettingGroup(name, tuple(settings))

    groups = [group("agent", _flat(_object(effective.get("agent")) or _agent(experiment)), "agent.")]
    network = effective.get("network") if effective else None
    layers = experiment.get("network") or (policy or {}).get("network")
    rows = _network_rows(network if isinstance(network, dict) else {"layers": layers}, "network" in given, everything)
    groups.append(SettingGroup("network", tuple(rows)))
    environment = _object(effective.get("environment")) or experiment.get("environment")
    groups.append(group("environment", _environment_rows(environment), "environment."))
    groups.append(_experiment_group(experiment, effective, given, everything))
    for name, value in experiment.items():
        if isinstance(value, dict) and name not in (*_PARTS, EFFECTIVE):
            section = group(name, _flat(value), f"{name}.")
            if not (everything or _applies(name, experiment)):
                section = SettingGroup(name, tuple(each for each in section.settings if each.is_given))
            groups.append(section)
    return [each for each in groups if each.settings]


def _experiment_group(experiment: Json, effective: Json, given: set[str], everything: bool) -> SettingGroup:
    """The fields of the experiment itself, with its effective limits."""
    limits = _object(effective.get("limits"))
    told = {*_NO_SETTINGS, *(_OF_ENVIRONMENT if effective else ())}
    settings = []
    for name, written in experiment.items():
        value = limits.get(name, written) if name in _LIMITS else written
        is_given = name in given or f"limits.{name}" in given
        if name in (*_PARTS, EFFECTIVE) or isinstance(value, dict):
            continue
        is_idle = _is_unset(value) or not _applies(name, experiment)
        if everything or (name not in told and (is_given or not is_idle)):
            settings.append(RunSetting(name, value, is_given))
    return SettingGroup("experiment", tuple(settings))


def _applies(name: str, experiment: Json) -> bool:
    """Whether a field or section has an effect in this run mode and on this platform."""
    mode, platform = experiment.get("run_mode", "single"), experiment.get("platform", "local")
    if name in _FOR_RUN_MODES:
        return mode in _FOR_RUN_MODES[name] and not (name == "ray" and platform == "kubernetes")
    match name:
        case "kubernetes":
            return platform == "kubernetes"
        case "num_workers":
            return mode != "single"
        case "num_parameter_servers":
            return mode == "distributed"
    return True


def _network_rows(network: Json, is_given: bool, everything: bool) -> Iterator[RunSetting]:
    for number, layer in enumerate(_list(network.get("layers")), 1):
        if isinstance(layer, dict) and not everything:
            layer = {name: value for name, value in layer.items() if value and (name, value) != ("bias", True)}
        yield RunSetting(f"layer {number}", layer, is_given)
    for name, value in network.items():
        if name != "layers":
            yield RunSetting(name, value, False)


def _environment_rows(environment: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(environment, str):
        yield "id", environment
    for name, value in _object(environment).items():
        if isinstance(value, dict) and value and name not in _WHOLE:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _flat(value: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as (path, value); objects in lists are values."""
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flat(item, f"{prefix}{name}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            yield from ((f"{prefix}{name} {number}", each) for number, each in enumerate(item, 1))
        else:
            yield f"{prefix}{name}", item


def _agent(experiment: Json) -> Json:
    agent = experiment.get("agent")
    return {"type": agent} if isinstance(agent, str) else _object(agent)


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
