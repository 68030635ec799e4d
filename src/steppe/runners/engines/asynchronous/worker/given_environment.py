"""The spec of an environment that a user gives as a name, a callable or an object."""

from __future__ import annotations

from itertools import count
from typing import Any

from steppe.errors import UserError
from steppe.spec_files import read_environment
from steppe.specs.environment import EnvironmentSpec

_numbers = count()


def environment_of(given: Any, num_envs: int) -> EnvironmentSpec:
    """Returns the spec of `given`: a name, a spec as JSON, a callable that makes an environment, or an environment.

    Callables and objects are registered with gymnasium, so that they are stepped and checked like all others.
    """
    if isinstance(given, EnvironmentSpec):
        return given
    if isinstance(given, str | dict):
        return read_environment(given)
    import gymnasium

    entry = given
    if isinstance(given, gymnasium.Env):
        if num_envs > 1:
            raise UserError(
                f"env_wrapper is one environment, but num_envs is {num_envs}; give a callable that makes a new one"
            )
        entry = _Once(given)
    if not callable(entry):
        raise UserError(
            f"env_wrapper must be a gymnasium.Env, a callable that makes one or a name, not {type(given).__name__}"
        )
    id = f"steppe/Own{next(_numbers)}-v0"
    gymnasium.register(id, entry_point=entry)
    return EnvironmentSpec(id=id, backend="gymnasium")


class _Once:
    """Returns an existing environment, with its own spec unchanged."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self, **_: Any) -> Any:
        return self._env
