"""An environment as people give it in Python, in the words of an experiment file."""

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
    from steppe.envs.gymnasium.in_process import id_of

    return id_of(environment)


def check_objects_known(environment: EnvironmentSpec) -> None:
    """Refuses an environment or a wrapper that was an object of another process."""
    if environment.id.startswith(IN_PROCESS):
        from steppe.envs.gymnasium.in_process import check_known

        check_known(environment.id)
    if any(wrapper["type"].startswith(IN_PROCESS) for wrapper in environment.wrappers):
        from steppe.envs.gymnasium import given_wrappers

        given_wrappers.check_known(environment)


def check_has_name(environment: EnvironmentSpec, needs_name: str) -> None:
    """Refuses an environment or a wrapper without a name where `needs_name` makes environments in other processes."""
    if environment.id.startswith(IN_PROCESS) or environment.wrappers:
        from steppe.envs.gymnasium.given_wrappers import check_named
        from steppe.envs.gymnasium.in_process import check_kind_of_run

        check_kind_of_run(environment.id, needs_name, None)
        check_named(environment, needs_name)


def _named_part(name: str, value: Any) -> Any:
    """A part of an environment's object, with names in place of what is given as a class or a function."""
    if name == "id" and not isinstance(value, str):
        return named_environment(value)
    if name == "wrappers" and isinstance(value, list | tuple):
        return [_named_wrapper(each) for each in value]
    return value


def _named_wrapper(wrapper: Any) -> Any:
    if isinstance(wrapper, str):
        return wrapper
    from steppe.envs.gymnasium.given_wrappers import id_of

    if isinstance(wrapper, dict):
        type = wrapper.get("type", "")
        return wrapper if isinstance(type, str) else wrapper | {"type": id_of(type)}
    return id_of(wrapper)


def is_same(environment: Any, before: EnvironmentSpec) -> bool:
    """Whether an environment in the words of a file, with its wrappers handed over again, is the one from `before`."""
    from steppe.spec_files import read_environment

    if not isinstance(environment, dict):
        return False
    with contextlib.suppress(SpecError):  # which is told where the fields are read
        return read_environment(environment).model_dump() == before.model_dump()
    return False


def for_instance(spec: ExperimentSpec) -> ExperimentSpec:
    """The spec, with one environment if an instance was given and nobody has said how many."""
    if spec.num_envs is not None or not spec.environment.id.startswith(IN_PROCESS):
        return spec
    from steppe.envs.gymnasium.in_process import is_instance

    return spec.model_copy(update={"num_envs": 1}) if is_instance(spec.environment.id) else spec
