"""Environments and wrappers that are objects of this process, without a name that another process could import.

A class or function of a module is called "module:Name", which every process can make. A lambda, a class of a script or
a notebook, and an environment that exists already are kept here, each under an id that begins with IN_PROCESS.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
import weakref
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, NamedTuple

import gymnasium

from steppe.envs.gymnasium.wrappers import find_in
from steppe.errors import UserError
from steppe.specs.environment import IN_PROCESS, EnvironmentSpec

ENVIRONMENT_BY_NAME = 'put its class into a module of its own and give its name, "my_module:MyEnv"'
WRAPPER_BY_NAME = 'put it into a module of its own and give its name, "my_module:MyWrapper"'
TO_MAKE_MORE = "give its class, or a function that makes a new one each time"


class GivenEnvironment(NamedTuple):
    """The object that was given as an environment."""

    source: Any
    instance: gymnasium.Env | None
    """The only environment there is, if the source is an instance or always returns the same one."""


_environments: dict[str, GivenEnvironment] = {}
_wrappers: dict[str, Callable[..., Any]] = {}


class Borrowed(gymnasium.Wrapper):
    """The user's own environment while Steppe uses it; `close` gives it back and leaves it open."""

    def close(self) -> None:
        """Gives it back."""
        if _borrowed.get(id(self.env)) is self:
            del _borrowed[id(self.env)]


_borrowed: weakref.WeakValueDictionary[int, Borrowed] = weakref.WeakValueDictionary()
"""id(environment) -> its current user."""


def environment_id(environment: Any) -> str:
    """The name under which an experiment keeps an environment object: "module:Name", or an id of this process."""
    _check_type(environment)
    if (name := _importable_name(environment)) is not None:
        return name
    known = next((id for id, given in _environments.items() if given.source is environment), None)
    if known is None:
        known = _new_id(environment, _environments)
        keep(known, environment)
    return known


def wrapper_id(wrapper: Any) -> str:
    """The name under which an experiment keeps a wrapper object: "module:Name", or an id of this process."""
    if not callable(wrapper):
        what = f"an instance of {type(wrapper).__name__}" if isinstance(wrapper, gymnasium.Env) else repr(wrapper)
        raise UserError(
            f"wrong wrapper {what}; give its class, a function that takes the environment and returns it wrapped, or a "
            'name, "my_module:MyWrapper"'
        )
    name = str(getattr(wrapper, "__name__", ""))
    if getattr(gymnasium.wrappers, name, None) is wrapper:
        return f"gymnasium.wrappers:{name}"
    if (path := _importable_name(wrapper)) is not None:
        return path
    known = next((id for id, given in _wrappers.items() if given is wrapper), None)
    if known is None:
        known = _new_id(wrapper, _wrappers)
        _wrappers[known] = wrapper
    return known


def keep(id: str, environment: Any) -> None:
    """Makes `id` stand for this environment object from now on."""
    _check_type(environment)
    _environments[id] = GivenEnvironment(environment, _only_instance(environment))


def is_instance(id: str) -> bool:
    """Whether `id` is a single environment, which cannot be made several times."""
    return id in _environments and _environments[id].instance is not None


def check_known(environment: EnvironmentSpec) -> None:
    """Refuses an environment or wrappers that were objects of another process."""
    if environment.id.startswith(IN_PROCESS):
        _find_environment(environment.id)
    for id, what in _wrappers_of_process(environment):
        find_wrapper(id, what)


def check_kind_of_run(environment: EnvironmentSpec, needs_name: str | None, needs_several: str | None) -> None:
    """Refuses objects of this process for runs that need a name or several environments; the arguments say for what."""
    id, is_object = environment.id, environment.id.startswith(IN_PROCESS)
    if is_object and needs_name is not None:
        raise UserError(
            f'environment "{id}" is an object of this process, and {needs_name} makes environments in other processes, '
            f"which import them by name; {ENVIRONMENT_BY_NAME}"
        )
    if is_object and needs_several is not None and is_instance(id):
        raise UserError(
            f'environment "{id}" is one environment, and {needs_several} needs more than one; {TO_MAKE_MORE}'
        )
    for _, what in _wrappers_of_process(environment) if needs_name is not None else ():
        raise UserError(
            f"{what} is an object of this process, and {needs_name} makes environments in other processes, which "
            f"import wrappers by name; {WRAPPER_BY_NAME}"
        )


def make(id: str, settings: dict[str, Any]) -> gymnasium.Env:
    """A new environment; an instance is lent to one user at a time."""
    source, env = _find_environment(id)
    if env is None:
        made = source(**settings)
        if not isinstance(made, gymnasium.Env):
            raise UserError(
                f'environment "{id}" returned {type(made).__name__}, not a gymnasium.Env; let it return one'
            )
        return made
    mode = settings.get("render_mode", env.render_mode)
    if others := sorted(settings.keys() - {"render_mode"}):
        raise UserError(
            f'environment "{id}" exists already, so it takes no settings such as "{others[0]}"; give its class'
        )
    if mode != env.render_mode:
        raise UserError(
            f'environment "{id}" cannot be shown, since it was made with render_mode={env.render_mode!r}; make it with '
            f"render_mode={mode!r}"
        )
    if builtins.id(env) in _borrowed:
        raise UserError(
            f'environment "{id}" is one environment, and more than one is needed at the same time; {TO_MAKE_MORE}, or '
            "use num_envs=1, one process and no evaluation during training"
        )
    _borrowed[builtins.id(env)] = borrowed = Borrowed(env)
    return borrowed


def find_wrapper(id: str, what: str) -> Callable[..., Any]:
    """The wrapper of an id of this process; `what` begins the error's sentence if another process had it."""
    if id not in _wrappers:
        raise UserError(
            f"{what} was an object of the Python process that made this experiment, and is not known in this one; hand "
            'it over again, as in Experiment.open(NAME).start(resume=True, environment={"id": ..., "wrappers": '
            f"[MyWrapper]}}), or {WRAPPER_BY_NAME}, in a new experiment"
        )
    return _wrappers[id]


def _find_environment(id: str) -> GivenEnvironment:
    if id not in _environments:
        raise UserError(
            f'environment "{id}" was an object of the Python process that made this experiment, and is not known in '
            "this one; hand it over again, as in Experiment.open(NAME).start(resume=True, environment=MyEnv), or "
            f"{ENVIRONMENT_BY_NAME}, in a new experiment"
        )
    return _environments[id]


def _wrappers_of_process(environment: EnvironmentSpec) -> list[tuple[str, str]]:
    """(id, the wrapper's name in a sentence) of each wrapper that is an object of a process."""
    ids = (wrapper["type"] for wrapper in environment.wrappers)
    return [(id, f'wrapper "{id}" of environment "{environment.id}"') for id in ids if id.startswith(IN_PROCESS)]


def _check_type(environment: Any) -> None:
    if callable(environment) or isinstance(environment, gymnasium.Env):
        return
    kind = type(environment)
    looks_alike = hasattr(environment, "reset") and hasattr(environment, "step")
    raise UserError(
        f"wrong environment of type {kind.__module__}.{kind.__qualname__}; give an id, a name such as "
        '"my_module:MyEnv", or a gymnasium.Env: its class, a function that makes one, or one that is made'
        f"{'; let its class inherit from gymnasium.Env' if looks_alike else ''}"
    )


def _importable_name(thing: Any) -> str | None:
    """ "module:Name" of a class or function that another process can import."""
    if not isinstance(thing, type | FunctionType) or thing.__module__ == "__main__":
        return None
    module = sys.modules.get(thing.__module__)
    # Classes of a notebook's cell or of a function's body cannot be found by a name in their module.
    if module is None or getattr(module, "__file__", None) is None:
        return None
    name = thing.__qualname__
    return f"{thing.__module__}:{name}" if find_in(module, name) is thing else None


def _new_id(thing: Any, taken: Collection[str]) -> str:
    """`in-process:Name`, where Name is that of the class or function; numbered if that is taken."""
    own = thing.unwrapped if isinstance(thing, gymnasium.Env) else thing
    name = getattr(own, "__name__", type(own).__name__)
    stem = IN_PROCESS + (re.sub(r"\W", "", name) or "environment")
    choices = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 2))
    return next(choice for choice in choices if choice not in taken)


def _only_instance(environment: Any) -> gymnasium.Env | None:
    """The environment itself, or that of a function that returns the same one each time; else None."""
    if isinstance(environment, gymnasium.Env):
        return environment
    if isinstance(environment, type):
        return None
    made: list[Any] = []
    # An error here is raised again, and reported, when a run makes the environment.
    with contextlib.suppress(Exception):
        made += [environment(), environment()]
    if len(made) == 2 and made[0] is made[1] and isinstance(made[0], gymnasium.Env):
        return made[0]
    for env in made:
        with contextlib.suppress(Exception):
            env.close()
    return None
