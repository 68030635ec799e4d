"""Environments that are objects of this process and have no name that another process could import.

A class or function of a module is called "module:Name", which every process can make. A lambda, a class of a script or
a notebook and an environment itself are kept here, each under an id that begins with IN_PROCESS.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
import weakref
from collections.abc import Collection
from types import FunctionType
from typing import Any, NamedTuple

import gymnasium

from steppe.envs.gymnasium.wrapping import find_in
from steppe.errors import UserError
from steppe.specs.environment import IN_PROCESS

BY_NAME = 'put its class into a module of its own and give its name, "my_module:MyEnv"'
TO_MAKE_MORE = "give its class, or a function that makes a new one each time"


class Given(NamedTuple):
    """What was given as an environment."""

    source: Any
    instance: gymnasium.Env | None
    """The one environment that there is, if the source is one or always returns the same one."""


_given: dict[str, Given] = {}


class Borrowed(gymnasium.Wrapper):
    """The user's own environment while Steppe uses it; closing it gives it back and leaves it open."""

    def close(self) -> None:
        """Gives it back."""
        if _borrowed.get(id(self.env)) is self:
            del _borrowed[id(self.env)]


_borrowed: weakref.WeakValueDictionary[int, Borrowed] = weakref.WeakValueDictionary()
"""id(environment) -> what uses it now."""


def id_of(environment: Any) -> str:
    """What an experiment calls an environment that is given as an object: "module:Name", or an id of this process."""
    _check_kind(environment)
    if (name := importable_name(environment)) is not None:
        return name
    known = next((id for id, given in _given.items() if given.source is environment), None)
    if known is not None:
        return known
    new = new_id(environment, _given)
    keep(new, environment)
    return new


def new_id(thing: Any, taken: Collection[str]) -> str:
    """`in-process:Name` of a class, function or environment; with a number behind it if that is taken."""
    stem = IN_PROCESS + _word_for(thing)
    choices = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 2))
    return next(choice for choice in choices if choice not in taken)


def keep(id: str, environment: Any) -> None:
    """Lets `id` mean this object from now on."""
    _check_kind(environment)
    _given[id] = Given(environment, _only_one_of(environment))


def is_instance(id: str) -> bool:
    """Whether `id` is one environment, of which there cannot be several."""
    return id in _given and _given[id].instance is not None


def check_known(id: str) -> None:
    """Refuses an id whose object another process had."""
    if id not in _given:
        raise UserError(
            f'environment "{id}" was an object of the Python process that made this experiment, and is not known in '
            "this one; hand it over again, as in Experiment.open(NAME).start(resume=True, environment=MyEnv), or "
            f"{BY_NAME}, in a new experiment"
        )


def make(id: str, settings: dict[str, Any]) -> gymnasium.Env:
    """A new environment; an instance is lent to one user at a time."""
    check_known(id)
    env = _given[id].instance
    if env is None:
        made = _given[id].source(**settings)
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


def check_kind_of_run(id: str, needs_name: str | None, needs_several: str | None) -> None:
    """Refuses what an object cannot do: `needs_name` and `needs_several` say which part of a run asks for it."""
    if not id.startswith(IN_PROCESS):
        return
    if needs_name is not None:
        raise UserError(
            f'environment "{id}" is an object of this process, and {needs_name} makes environments in other processes, '
            f"which import them by name; {BY_NAME}"
        )
    if needs_several is not None and is_instance(id):
        raise UserError(
            f'environment "{id}" is one environment, and {needs_several} needs more than one; {TO_MAKE_MORE}'
        )


def _check_kind(environment: Any) -> None:
    if callable(environment) or isinstance(environment, gymnasium.Env):
        return
    kind = type(environment)
    looks_alike = hasattr(environment, "reset") and hasattr(environment, "step")
    raise UserError(
        f"wrong environment of type {kind.__module__}.{kind.__qualname__}; give an id, a name such as "
        '"my_module:MyEnv", or a gymnasium.Env: its class, a function that makes one, or one that is made'
        f"{'; let its class inherit from gymnasium.Env' if looks_alike else ''}"
    )


def importable_name(environment: Any) -> str | None:
    """ "module:Name" of a class or function that another process finds under it."""
    if not isinstance(environment, type | FunctionType) or environment.__module__ == "__main__":
        return None
    module = sys.modules.get(environment.__module__)
    # What a notebook's cell or a function defines is found under no name of its module.
    if module is None or getattr(module, "__file__", None) is None:
        return None
    name = environment.__qualname__
    return f"{environment.__module__}:{name}" if find_in(module, name) is environment else None


def _word_for(environment: Any) -> str:
    """A word that people recognise: the name of the class or function."""
    own = environment.unwrapped if isinstance(environment, gymnasium.Env) else environment
    name = getattr(own, "__name__", type(own).__name__)
    return re.sub(r"\W", "", name) or "environment"


def _only_one_of(environment: Any) -> gymnasium.Env | None:
    """The one environment, if it is one or if it is a function that returns the same one each time."""
    if isinstance(environment, gymnasium.Env):
        return environment
    if isinstance(environment, type):
        return None
    made: list[Any] = []
    # What goes wrong here goes wrong again when a run makes it, which says so.
    with contextlib.suppress(Exception):
        made += [environment(), environment()]
    if len(made) == 2 and made[0] is made[1] and isinstance(made[0], gymnasium.Env):
        return made[0]
    for env in made:
        with contextlib.suppress(Exception):
            env.close()
    return None
