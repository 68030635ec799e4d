"""Wrappers that are given as classes or functions, as environments are in `in_process`.

One that a module holds is called "module:Name". A lambda and a class of a script or a notebook are kept here, each
under an id that begins with IN_PROCESS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from steppe.envs.gymnasium.in_process import importable_name, new_id
from steppe.errors import UserError
from steppe.specs.environment import IN_PROCESS, EnvironmentSpec

BY_NAME = 'put it into a module of its own and give its name, "my_module:MyWrapper"'
GYMNASIUMS = "gymnasium.wrappers"

_given: dict[str, Callable[..., Any]] = {}


def id_of(wrapper: Any) -> str:
    """What an experiment calls a wrapper that is given as an object: "module:Name", or an id of this process."""
    if not callable(wrapper):
        what = f"an instance of {type(wrapper).__name__}" if isinstance(wrapper, gymnasium.Env) else repr(wrapper)
        raise UserError(
            f"wrong wrapper {what}; give its class, a function that takes the environment and returns it wrapped, or a "
            'name, "my_module:MyWrapper"'
        )
    name = str(getattr(wrapper, "__name__", ""))
    if getattr(gymnasium.wrappers, name, None) is wrapper:
        return f"{GYMNASIUMS}:{name}"
    if (path := importable_name(wrapper)) is not None:
        return path
    known = next((id for id, given in _given.items() if given is wrapper), None)
    if known is None:
        known = new_id(wrapper, _given)
        _given[known] = wrapper
    return known


def find(id: str, what: str) -> Callable[..., Any]:
    """The wrapper of an id of this process; `what` begins the sentence that says that another process had it."""
    if id not in _given:
        raise UserError(
            f"{what} was an object of the Python process that made this experiment, and is not known in this one; hand "
            'it over again, as in Experiment.open(NAME).start(resume=True, environment={"id": ..., "wrappers": '
            f"[MyWrapper]}}), or {BY_NAME}, in a new experiment"
        )
    return _given[id]


def check_known(environment: EnvironmentSpec) -> None:
    """Refuses wrappers whose objects another process had."""
    for wrapper in environment.wrappers:
        if wrapper["type"].startswith(IN_PROCESS):
            find(wrapper["type"], f'wrapper "{wrapper["type"]}" of environment "{environment.id}"')


def check_named(environment: EnvironmentSpec, needs_name: str | None) -> None:
    """Refuses wrappers that are objects of this process where `needs_name` makes environments in other processes."""
    for wrapper in environment.wrappers if needs_name is not None else ():
        if wrapper["type"].startswith(IN_PROCESS):
            raise UserError(
                f'wrapper "{wrapper["type"]}" of environment "{environment.id}" is an object of this process, and '
                f"{needs_name} makes environments in other processes, which import wrappers by name; {BY_NAME}"
            )
