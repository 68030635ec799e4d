"""Makes gymnasium environments from a spec and says in one sentence why one cannot be made."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from steppe.envs.registry import has_twin, known_ids
from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.words import did_you_mean

PACKAGES = {"ALE": ("ale_py", "ale-py")}
"""The namespaces that a separate package registers: (its module, what to install)."""


def make_env(spec: EnvironmentSpec, render_mode: str | None = None) -> tuple[gymnasium.Env, int | None]:
    """(a new environment without its time limit and checks, that limit); the caller counts the time."""
    settings = dict(spec.settings)
    if render_mode is not None:
        settings["render_mode"] = render_mode
    given = settings.pop("max_episode_steps", None)
    limit = None if given is None else checked_limit(given, spec.id)
    try:
        with warnings.catch_warnings():
            # The user named this version on purpose.
            warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
            if ":" in spec.id:
                env, registered_limit = _make_from_module(spec.id, settings)
            else:
                env, registered_limit = _make_registered(spec.id, settings)
    except SteppeError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f'environment "{spec.id}" needs an optional package: {error}') from error
    except ModuleNotFoundError as error:
        raise UserError(
            f'environment "{spec.id}" needs the Python module "{error.name}", which is not installed; add it with pip'
        ) from error
    except TypeError as error:
        if render_mode is not None and "render_mode" in str(error):
            raise UserError(f'environment "{spec.id}" must accept render_mode="rgb_array" to be shown') from error
        raise UserError(f'environment "{spec.id}" does not accept its settings {settings}: {error}') from error
    except Exception as error:
        raise EnvironmentFault(
            f'environment "{spec.id}" could not be made: {type(error).__name__}: {error}; check its settings {settings}'
        ) from error
    return env, registered_limit if given is None else limit


def find_spec(id: str) -> Any:
    """The gymnasium registration of an id, for which the module before its colon or its package is imported."""
    module, _, name = id.rpartition(":")
    namespace, _, rest = name.partition("/")
    if module:
        _import(module, id)
    elif rest and namespace in PACKAGES and name not in gymnasium.registry:
        package_module, package = PACKAGES[namespace]
        try:
            gymnasium.register_envs(importlib.import_module(package_module))
        except ModuleNotFoundError as error:
            raise UserError(f'environment "{id}" needs an optional package; run: pip install "{package}"') from error
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if module:
        raise UserError(f'environment "{id}" names "{name}", which the module "{module}" does not register as an id')
    if has_twin(id):
        raise UserError(f'environment "{id}" is Steppe\'s own and only runs compiled; leave out "backend": "gymnasium"')
    raise UserError(
        f'unknown environment "{id}", which is neither a gymnasium id nor "module:callable"'
        f"{did_you_mean(id, [*gymnasium.registry, *known_ids()])}"
    )


def checked_limit(limit: Any, id: str) -> int | None:
    """The max_episode_steps of an environment's settings; -1 is gymnasium's word for none."""
    if limit == -1:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UserError(
            f'environment "{id}" has max_episode_steps {limit!r} in its settings; it must be a whole number from 1 on'
        )
    return limit


def _make_registered(id: str, settings: dict[str, Any]) -> tuple[gymnasium.Env, int | None]:
    """An environment that gymnasium knows by its id."""
    registration = find_spec(id)
    # The time limit is counted by HostEnvs, in decisions, and the wrappers below cost time in every step.
    env = gymnasium.make(registration, max_episode_steps=-1, disable_env_checker=True, **settings)
    if type(env) is gymnasium.wrappers.OrderEnforcing:
        env = env.env
    return env, registration.max_episode_steps


def _make_from_module(id: str, settings: dict[str, Any]) -> tuple[gymnasium.Env, int | None]:
    """What `module:callable` returns; or, as gymnasium has it, the id that importing the module registers."""
    module_name, _, name = id.partition(":")
    module = _import(module_name, id)
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if callable(target):
        env = target(**settings)
        if not isinstance(env, gymnasium.Env):
            raise UserError(
                f'environment "{id}" returned {_a(type(env).__name__)}, not a gymnasium.Env; let "{name}" return one'
            )
        # Where the callable uses gymnasium.make, its time limit keeps the time; knowing it keeps a shorter one away.
        return env, None if env.spec is None else env.spec.max_episode_steps
    if name in gymnasium.registry:
        return _make_registered(name, settings)
    choices = [word for word, value in vars(module).items() if callable(value)]
    raise UserError(
        f'environment "{id}" names "{name}", which the module "{module_name}" does not have'
        f"{did_you_mean(name, choices)}"
    )


def _import(name: str, id: str) -> ModuleType:
    """The user's module, from the current folder or installed."""
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        # A console script does not have the user's folder on its path, `python -m` does.
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f'environment "{id}" names the module "{name}", which is not there; write module:callable, '
                f"with the module in {Path.cwd()} or installed"
            ) from error
        raise


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
