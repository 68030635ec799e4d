"""Translates environments given as Python objects to values that an experiment file can hold."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from steppe.errors import SpecError
from steppe.specs.environment import IN_PROCESS

if TYPE_CHECKING:
    from steppe.specs.environment import EnvironmentSpec
    from steppe.specs.experiment import ExperimentSpec


def named_environment(environment: Any) -> Any:
    """The environment itself, with an id in place of a class, a function or an instance; wrappers alike."""
    if isinstance(environment, dict):
        return {name: _named_part(name, value) for name, value in environment.items()}
    if environment is None or isinstance(environment, str | list | int | float | BaseModel):
        return environment
    from steppe.envs.gymnasium.in_process import environment_id

    return environment_id(environment)


def check_objects_known(environment: EnvironmentSpec) -> None:
    """Refuses an environment or a wrapper that was a Python object of another process."""
    if any(id.startswith(IN_PROCESS) for id in (environment.id, *(each["type"] for each in environment.wrappers))):
        from steppe.envs.gymnasium.in_process import check_known

        check_known(environment)


def check_has_name(environment: EnvironmentSpec, needs_name: str) -> None:
    """Refuses an environment or a wrapper without a name if `needs_name` makes environments in other processes."""
    if environment.id.startswith(IN_PROCESS) or environment.wrappers:
        from steppe.envs.gymnasium.in_process import check_kind_of_run

        check_kind_of_run(environment, needs_name, None)


def _named_part(name: str, value: Any) -> Any:
    """A part of an environment, with names in place of classes and functions."""
    if name == "id" and not isinstance(value, str):
        return named_environment(value)
    if name == "wrappers" and isinstance(value, list | tuple):
        return [_named_wrapper(each) for each in value]
    return value


def _named_wrapper(wrapper: Any) -> Any:
    if isinstance(wrapper, str):
        return wrapper
    from steppe.envs.gymnasium.in_process import wrapper_id

    if isinstance(wrapper, dict):
        type = wrapper.get("type", "")
        return wrapper if isinstance(type, str) else wrapper | {"type": wrapper_id(type)}
    return wrapper_id(wrapper)


def is_same(environment: Any, before: EnvironmentSpec) -> bool:
    """Whether an environment as a file describes it equals `before`."""
    from steppe.spec_files import read_environment

    if not isinstance(environment, dict):
        return False
    with contextlib.suppress(SpecError):  # reported when the fields are read
        return read_environment(environment).model_dump() == before.model_dump()
    return False


def for_instance(spec: ExperimentSpec) -> ExperimentSpec:
    """The spec; with num_envs 1 if the environment is an instance and num_envs is not given."""
    if spec.num_envs is not None or not spec.environment.id.startswith(IN_PROCESS):
        return spec
    from steppe.envs.gymnasium.in_process import is_instance

    return spec.model_copy(update={"num_envs": 1}) if is_instance(spec.environment.id) else spec
