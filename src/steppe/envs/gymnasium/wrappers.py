"""Wrappers of a spec around a gymnasium environment, and the lookup of names in modules."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import spaces

from steppe.envs.registry import extra_of_error
from steppe.errors import EnvironmentFault, MissingEnvironment, MissingExtra, SteppeError, UserError
from steppe.specs.environment import IN_PROCESS, EnvironmentSpec
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.user_code import DEBUG, told


def wrapped(env: gymnasium.Env, spec: EnvironmentSpec) -> gymnasium.Env:
    """The environment with the wrappers of its spec, the first one innermost."""
    for wrapper in spec.wrappers:
        settings = {name: value for name, value in wrapper.items() if name != "type"}
        env = _wrap(env, wrapper["type"], settings, f'wrapper "{wrapper["type"]}" of environment "{spec.id}"')
    return env


def import_module(name: str, what: str, wanted: str = "Name") -> ModuleType:
    """A module of the user's folder or an installed package; `what` begins an error, `wanted` is in its hint."""
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").replace("/", ".").strip(".")
        raise UserError(f'{what} names the file "{name}"; write its module instead, as in "{module}:{wanted}"')
    is_known = name.partition(".")[0] in sys.modules
    if not is_known and str(Path.cwd()) not in sys.path and "" not in sys.path:
        # Unlike `python -m`, a console script does not have the current folder on its path.
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise MissingEnvironment(
                f'{what} names the module "{name}", which is not there; write module:callable, with the module in '
                f"{Path.cwd()} or installed"
            ) from error
        raise


def find_in(module: ModuleType, name: str) -> Any:
    """The object with a dotted name in a module, or None."""
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    return target


def not_in(module: ModuleType, name: str, what: str) -> UserError:
    """The error for a name that a module does not have."""
    choices = [word for word, value in vars(module).items() if callable(value)]
    return UserError(
        f'{what} names "{name}", which the module "{module.__name__}" does not have{did_you_mean(name, choices)}'
    )


class WithoutText(gymnasium.ObservationWrapper):
    """Removes the texts of a Dict observation, which no network here can read."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        self.left_out = _texts(env.observation_space)
        self.observation_space = spaces.Dict(
            {name: inner for name, inner in env.observation_space.spaces.items() if name not in self.left_out}
        )

    def observation(self, observation: Any) -> Any:
        """The observation without texts."""
        return {name: value for name, value in observation.items() if name not in self.left_out}


def without_text(env: gymnasium.Env) -> gymnasium.Env:
    """The environment, in a `WithoutText` if it observes texts beside other values."""
    space = env.observation_space
    if isinstance(space, spaces.Dict) and 0 < len(_texts(space)) < len(space.spaces):
        return WithoutText(env)
    return env


def notices_of(env: gymnasium.Env, id: str) -> tuple[str, ...]:
    """A notice on texts that are left out of the observations."""
    if not isinstance(env, WithoutText):
        return ()
    names = ", ".join(f'"{name}"' for name in env.left_out)
    return (f'environment "{id}" also observes text, {names}, which is left out: no network reads text',)


def _texts(space: spaces.Dict) -> list[str]:
    # By the type of their elements, since packages have text spaces of their own.
    return [name for name, inner in space.spaces.items() if inner.dtype is not None and inner.dtype.kind == "U"]


def _wrap(env: gymnasium.Env, path: str, settings: dict[str, Any], what: str) -> gymnasium.Env:
    wrapper = _find_wrapper(path, what)
    _check_arguments(wrapper, settings, what)
    try:
        outer = wrapper(env, **settings)
    except SteppeError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        if (extra := extra_of_error(error)) is not None:
            raise MissingExtra(what, extra) from error
        raise UserError(f"{what} needs an optional package: {error}") from error
    except Exception as error:
        raise EnvironmentFault(
            f"{what} could not be made: {told(error)}; check its settings {settings} ({DEBUG})"
        ) from error
    if not isinstance(outer, gymnasium.Env):
        raise UserError(f"{what} returned {type(outer).__name__}, not a gymnasium.Env; name one that does")
    return outer


def _find_wrapper(path: str, what: str) -> Callable[..., Any]:
    """The class or function of that name, in a module or in this process."""
    if path.startswith(IN_PROCESS):
        from steppe.envs.gymnasium import in_process

        return in_process.find_wrapper(path, what)
    module_name, colon, name = path.partition(":")
    if not colon:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise UserError(f'{what} must be written "module.Name" or "module:Name"')
    module = import_module(module_name, what)
    wrapper = find_in(module, name)
    if not callable(wrapper):
        raise not_in(module, name, what)
    return wrapper  # type: ignore[no-any-return]


def _check_arguments(wrapper: Any, settings: dict[str, Any], what: str) -> None:
    """Refuses unknown and missing arguments of a wrapper, by name."""
    try:
        parameters = list(inspect.signature(wrapper).parameters.values())[1:]
    except (TypeError, ValueError):  # for example written in C, which checks them itself
        return
    named = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in settings:
        if name not in named and not takes_any:
            way_out = did_you_mean(name, named) or (f"; it has {', '.join(named)}" if named else "; it has none")
            raise UserError(f'{what} has no argument "{name}"{way_out}')
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in settings:
            raise UserError(f'{what} needs the argument "{name}"; write {{"type": ..., "{name}": ...}}')
