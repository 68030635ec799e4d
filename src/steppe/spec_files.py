"""Loads specs: finds and reads files, applies overrides, translates TensorForce's words once, and validates."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec, is_name
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.loading.files import EFFECTIVE, check_plain, find_config, read_spec_file, shown_path
from steppe.specs.loading.inlining import MEANT_BY_TEXT, inline
from steppe.specs.loading.overrides import parse_override, put
from steppe.specs.loading.validation import Origins, join_path, shown, validate
from steppe.specs.running.cluster import ClusterSpec
from steppe.tensorforce import (
    Translation,
    TranslationError,
    as_written,
    in_present_fields,
    translate,
    translate_agent,
    translate_cluster,
    translate_environment,
    translate_network,
)

DEFAULT_AGENT = "ppo"
"""The agent of an experiment that names none."""
SWITCHED_OFF_BY_NONE = ("final_evaluation",)
"""Fields for which None means null instead of "not given"."""
_OPTIONS = {"name": "-n/--name", "environment": "-E/--environment"}
"""The options of `steppe train` and `steppe experiment new` for the fields that a file may leave out."""


def load_experiment(
    file: str | Path | None, overrides: dict[str, Any], sets: list[str], start: Path, *, options: bool = True
) -> ExperimentSpec:
    """The experiment in `file`, with `overrides` (None means not given) and then each `path=value` of `sets` applied.

    Sub-specs given by name are looked up and inlined; the default agent is DEFAULT_AGENT. If `options` is true, errors
    name command-line options such as `--episodes`.
    """
    data: dict[str, Any] = {}
    origins = Origins()
    given = {
        key: copy.deepcopy(value)
        for key, value in overrides.items()
        if value is not None or key in SWITCHED_OFF_BY_NONE
    }
    if file is not None:
        path = find_config(file, "experiment", start)
        data, origins = _read_file(path)
        # A sub-spec that is overridden is not looked up.
        data = {key: value for key, value in data.items() if key not in given}
        data, origins = inline(data, origins, path.parent, path)
    for key, value in given.items():
        data[key] = value
        place = (f"--{key.replace('_', '-')}", "") if options else ("", key)
        origins = origins.with_part((key,), *place)
        if options and key in MEANT_BY_TEXT and isinstance(value, str):
            origins = origins.with_part((key, MEANT_BY_TEXT[key]), *place)
    if data.get("agent") is None:
        data["agent"] = DEFAULT_AGENT
    data, origins = inline(data, origins, start)
    for text in sets:
        steps, value = parse_override(text)
        if steps[0] == "agent" and isinstance(data["agent"], dict):
            steps = ("agent", *as_written(data["agent"], steps[1:]))
        written = put(data, steps, value, text)
        origins = origins.with_part(written, "--set", join_path("", written))
        data, origins = inline(data, origins, start)
    spec = read_experiment(data, origins, options=options)
    # Both accept any settings, so the model does not notice values that JSON cannot represent.
    rule = "it must be something that JSON can hold"
    check_plain(spec.environment.settings, origins.below("environment", "settings"), rule=rule)
    check_plain(spec.agent.settings, spec.agent.origins, rule=rule)
    return spec


def read_experiment(data: Any, source: str | Origins = "", *, options: bool = False) -> ExperimentSpec:
    """Validates the data of an experiment, its sub-specs inlined; raises a SpecError for mistakes.

    If `options` is true, errors name command-line options.
    """
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name != EFFECTIVE}
    translation, origins = _translated(translate, data, source)
    spec = validate(ExperimentSpec, translation.data, source=origins, options=_OPTIONS if options else None)
    spec.agent.written_in(origins.below("agent"))
    return spec.with_notices(translation.notices)


def read_environment(data: Any, source: str | Origins = "") -> EnvironmentSpec:
    """Validates the data of an environment; raises a SpecError for mistakes."""
    translation, origins = _translated(translate_environment, data, source)
    return validate(EnvironmentSpec, translation.data, source=origins).with_notices(translation.notices)


def read_agent(data: Any, source: str | Origins = "") -> AgentSpec:
    """Validates the data of an agent; raises a SpecError for mistakes."""
    translation, origins = _translated(translate_agent, data, source)
    spec = validate(AgentSpec, translation.data, source=origins)
    spec.written_in(origins)
    return spec


def read_network(data: Any, source: str | Origins = "") -> NetworkSpec:
    """Validates the data of a network; raises a SpecError for mistakes."""
    translation, origins = _translated(translate_network, data, source)
    return validate(NetworkSpec, translation.data, source=origins)


def read_cluster(data: Any, source: str | Origins = "") -> ClusterSpec:
    """Validates the data of a cluster; raises a SpecError for mistakes."""
    translation, origins = _translated(translate_cluster, data, source)
    return validate(ClusterSpec, translation.data, source=origins)


def _translated(
    translator: Callable[[Any], Translation], data: Any, source: str | Origins
) -> tuple[Translation, Origins]:
    """Returns (the translation of `data`, its origins)."""
    origins = source if isinstance(source, Origins) else Origins(source)
    try:
        translation = translator(data)
    except TranslationError as error:
        what = "settings" if error.is_joint else f"value {shown(_at(data, error.steps))}"
        raise SpecError(f"wrong {what}{origins.place(*error.steps)}; {error}") from None
    return translation, origins.with_moved(translation.moved)


def _at(data: Any, steps: tuple[str | int, ...]) -> Any:
    """The value at `steps`, or None if there is none."""
    try:
        return functools.reduce(operator.getitem, steps, data)
    except (KeyError, IndexError, TypeError):
        return None


def _read_file(path: Path) -> tuple[dict[str, Any], Origins]:
    """Returns (data, origins); an experiment without a name is called like its file."""
    data, origins = read_spec_file(path), Origins(shown_path(path))
    if not isinstance(data, dict):
        validate(ExperimentSpec, data, source=origins)
    name = {"name": path.stem} if is_name(path.stem) else {}
    return name | in_present_fields(data), origins
