"""Constructs gymnasium environments from a spec; a failure is one sentence with the reason."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium

from steppe.compat.gymnasium_private import time_limit_of
from steppe.envs.gymnasium import in_process
from steppe.envs.gymnasium.wrappers import find_in, import_module, not_in, without_text, wrapped
from steppe.envs.registry import EXTRAS, compiled_ids, extra_of_error, extra_of_registration, has_compiled, plays_atari
from steppe.errors import EnvironmentFault, MissingEnvironment, MissingEnvironmentExtra, SteppeError, UserError
from steppe.specs.environment import IN_PROCESS, EnvironmentSpec
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.running.connections import CONNECTIONS
from steppe.specs.user_code import DEBUG, place_of, told

log = logging.getLogger(__name__)


def make_env(
    spec: EnvironmentSpec, render_mode: str | None = None, number: int = 0
) -> tuple[gymnasium.Env, int | None]:
    """(a new environment without its time limit and checks, that limit); the caller enforces the limit.

    `number` is the environment's number in the run, for those with an address each.
    """
    if spec.id in CONNECTIONS and (spec.id == "remote" or render_mode is not None):
        raise UserError(f'environment "{spec.id}" lives elsewhere and sends no pictures, so it cannot be shown')
    if plays_atari(spec):
        from steppe.envs.gymnasium.atari import make_single

        return make_single(spec, render_mode)
    settings = dict(spec.settings)
    if render_mode is not None:
        settings["render_mode"] = render_mode
    given = settings.pop("max_episode_steps", None)
    limit = None if given is None else checked_limit(given, spec.id)
    try:
        with warnings.catch_warnings():
            # The user named this version on purpose.
            warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
            # Box2D's bindings crash where this warning is an error.
            warnings.filterwarnings("ignore", message="builtin type .* has no __module__", category=DeprecationWarning)
            if spec.id == "ue4":
                from steppe.envs.remote.ue4 import connect

                env, registered_limit = connect(settings, number), None
            elif spec.id.startswith(IN_PROCESS):
                env, registered_limit = _limited(in_process.make(spec.id, settings))
            elif ":" in spec.id:
                env, registered_limit = _make_from_module(spec.id, settings)
            else:
                env, registered_limit = _make_registered(spec.id, settings)
        env = without_text(wrapped(env, spec))
    except SteppeError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        extra = (None if ":" in spec.id else extra_of_registration(find_spec(spec.id))) or extra_of_error(error)
        if extra is not None:
            raise MissingEnvironmentExtra(f'environment "{spec.id}"', extra) from error
        raise MissingEnvironment(f'environment "{spec.id}" needs an optional package: {error}') from error
    except ModuleNotFoundError as error:
        if (extra := extra_of_error(error)) is not None:
            raise MissingEnvironmentExtra(f'environment "{spec.id}"', extra) from error
        raise MissingEnvironment(
            f'environment "{spec.id}" needs the Python module "{error.name}", which is not installed; add it with pip'
        ) from error
    except TypeError as error:
        if render_mode is not None and "render_mode" in str(error):
            raise UserError(f'environment "{spec.id}" must accept render_mode="rgb_array" to be shown') from error
        if place_of(error) and not any(name in str(error) for name in settings):
            raise _unmade(spec, settings, error) from error
        raise UserError(f'environment "{spec.id}" does not accept its settings {settings}: {error}') from error
    except Exception as error:
        raise _unmade(spec, settings, error) from error
    return env, registered_limit if given is None else limit


def _unmade(spec: EnvironmentSpec, settings: dict[str, Any], error: Exception) -> EnvironmentFault:
    """The error for an environment whose code raised while it was imported or constructed."""
    way_out = f"check its settings {settings}" if settings else "correct it"
    return EnvironmentFault(f'environment "{spec.id}" could not be made: {told(error)}; {way_out} ({DEBUG})')


def find_spec(id: str) -> Any:
    """The gymnasium registration of an id; imports the module before its colon, or its package."""
    module, _, name = id.rpartition(":")
    if module:
        import_module(module, f'environment "{id}"')
    elif name not in gymnasium.registry:
        for start, package, extra in EXTRAS:
            if name.startswith(start):
                try:
                    gymnasium.register_envs(importlib.import_module(package))
                except ModuleNotFoundError as error:
                    raise MissingEnvironmentExtra(f'environment "{id}"', extra) from error
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if module:
        raise UserError(f'environment "{id}" names "{name}", which the module "{module}" does not register as an id')
    if has_compiled(id):
        raise UserError(
            f'environment "{id}" is Steppe\'s own and only runs compiled; leave out backend, wrappers and vectorization'
        )
    nearest = did_you_mean(id, [*gymnasium.registry, *compiled_ids()])
    raise UserError(
        f'unknown environment "{id}", which is neither a gymnasium id nor "module:callable"'
        + (nearest or f'; if a package registers it, put its module before it: "module:{id}"')
    )


def find_callable(id: str) -> Callable[..., Any] | None:
    """The callable of `module:callable`; None if importing the module has registered an id of that name instead."""
    module_name, _, name = id.partition(":")
    what = f'environment "{id}"'
    module = import_module(module_name, what, name)
    target = find_in(module, name)
    if callable(target):
        return target
    if name in gymnasium.registry:
        return None
    raise not_in(module, name, what)


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
    match extra_of_registration(registration):
        case "atari":
            settings = _for_atari(settings)
        case "mujoco":
            _let_mujoco_log()
    # GymnasiumEnvs enforces the time limit, in decisions; gymnasium's wrappers would cost time in every step.
    env = gymnasium.make(registration, max_episode_steps=-1, disable_env_checker=True, **settings)
    if type(env) is gymnasium.wrappers.OrderEnforcing:
        env = env.env
    return env, registration.max_episode_steps or _own_limit(env, registration.kwargs | settings)


def _make_from_module(id: str, settings: dict[str, Any]) -> tuple[gymnasium.Env, int | None]:
    """The result of `module:callable`; or, as in gymnasium, of the id that importing the module registers."""
    name = id.partition(":")[2]
    target = find_callable(id)
    if target is not None:
        env = target(**settings)
        if not isinstance(env, gymnasium.Env):
            kind = _a(type(env).__name__)
            raise UserError(f'environment "{id}" returned {kind}, not a gymnasium.Env; let "{name}" return one')
        return _limited(env)
    return _make_registered(name, settings)


def _limited(env: gymnasium.Env) -> tuple[gymnasium.Env, int | None]:
    """The environment and its own time limit."""
    # An environment from gymnasium.make enforces its limit itself; knowing it prevents a default that is shorter.
    return env, None if env.spec is None else env.spec.max_episode_steps


def _own_limit(env: gymnasium.Env, settings: dict[str, Any]) -> int | None:
    """The timesteps after which an environment truncates by itself, if known."""
    frames, skipped = settings.get("max_num_frames_per_episode"), settings.get("frameskip")
    if isinstance(frames, int) and skipped:
        return frames // (skipped if isinstance(skipped, int) else skipped[0]) or None
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            return time_limit_of(layer)
        layer = layer.env
    is_grid = type(env.unwrapped).__module__.startswith("minigrid")
    return getattr(env.unwrapped, "max_steps", None) or None if is_grid else None


def _for_atari(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as ale-py takes them; also turns off the banner of each game."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    # JSON has no tuples, and ale-py accepts no list as a range.
    is_range = isinstance(settings.get("frameskip"), list)
    return settings | {"frameskip": tuple(settings["frameskip"])} if is_range else settings


def _let_mujoco_log() -> None:
    """Sends MuJoCo's warnings to the log instead of a file in the current folder."""
    try:
        import mujoco
    except ImportError:  # reported better by gymnasium
        return
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_mujoco)


def _log_mujoco(sentence: str) -> None:
    # A user cannot change deprecated parts of gymnasium's models.
    log.log(logging.INFO if "deprecated" in sentence else logging.WARNING, "MuJoCo: %s", sentence)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
