"""An environment as people give it in Python, in the words of an experiment file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from steppe.specs.environment import IN_PROCESS

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec


def named_environment(environment: Any) -> Any:
    """The environment itself, with an id in place of a class, a function or an instance."""
    if isinstance(environment, dict):
        return {
            name: value if name != "id" or isinstance(value, str) else named_environment(value)
            for name, value in environment.items()
        }
    if environment is None or isinstance(environment, str | list | int | float | BaseModel):
        return environment
    from steppe.envs.in_process import id_of

    return id_of(environment)


def for_instance(spec: ExperimentSpec) -> ExperimentSpec:
    """The spec, with one environment if an instance was given and nobody has said how many."""
    if spec.num_envs is not None or not spec.environment.id.startswith(IN_PROCESS):
        return spec
    from steppe.envs.in_process import is_instance

    return spec.model_copy(update={"num_envs": 1}) if is_instance(spec.environment.id) else spec
