"""The known environments and how each of them runs. Lists of names need neither JAX nor gymnasium."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec as find_module
from typing import TYPE_CHECKING, Any, NamedTuple

from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import validate
from steppe.specs.user_code import GYMNASIUM_EXTRA, STEPPE_EXTRAS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from steppe.envs._base import CompiledEnv

COMPILED: dict[str, tuple[str, str]] = {
    "CartPole-v1": ("cartpole", "CartPoleV1"),
    "CartPole-v0": ("cartpole", "CartPoleV0"),
    "Acrobot-v1": ("acrobot", "Acrobot"),
    "MountainCar-v0": ("mountain_car", "MountainCar"),
    "MountainCarContinuous-v0": ("mountain_car", "MountainCarContinuous"),
    "Pendulum-v1": ("pendulum", "Pendulum"),
    "GridWorld-v0": ("grid_world", "GridWorld"),
}
ALIASES = {"GridWorld": "GridWorld-v0"}
DEFAULT_EPISODE_LIMIT = 1000
"""Timesteps after which an episode is truncated if neither the experiment nor the environment has a limit."""
ATARI = "ALE/"
"""The prefix of Atari games' ids."""
EXTRAS = ((ATARI, "ale_py", "atari"), ("MiniGrid-", "minigrid", "minigrid"), ("BabyAI-", "minigrid", "minigrid"))
"""Ids that a separate package registers when it is imported: (prefix, module, Steppe's extra)."""
FAMILIES = {
    "gymnasium.envs.mujoco": ("mujoco", "mujoco", "a robot or toy of MuJoCo's"),
    "gymnasium.envs.box2d": ("box2d", "Box2D", "a game of Box2D's"),
    "ale_py": ("atari", "ale_py", "an Atari game"),
    "minigrid": ("minigrid", "minigrid", "a grid world with tasks"),
}
"""Module of a registered environment's code: (Steppe's extra for it, the module it needs, a description)."""
EXAMPLES = (
    ("ALE/Breakout-v5", "atari", "ale_py", "every other Atari game, preprocessed"),
    ("HalfCheetah-v5", "mujoco", "mujoco", "gymnasium's other robots"),
    ("LunarLander-v3", "box2d", "Box2D", "gymnasium's other games in a plane"),
    ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid", "its other grids"),
)
"""One id of each family: (id, Steppe's extra, module, the rest of the family)."""
EXTRA_OF_MODULE = {module: extra for extra, module, _ in FAMILIES.values()} | {"pygame": "video"}
"""Steppe's extra for each module that an environment may import late, when it is drawn or reset."""


class ListedEnv(NamedTuple):
    """One environment of the catalogue."""

    id: str
    kind: str
    """ "compiled", "atari", "mujoco", "box2d", "minigrid", "remote" or "gymnasium"."""
    sentence: str


class EnvironmentSetting(NamedTuple):
    """One setting of an environment; `default` is "required" if it has none."""

    name: str
    default: Any
    sentence: str


def compiled_ids() -> list[str]:
    """The ids that run compiled, in alphabetical order."""
    return sorted(COMPILED)


def has_compiled(id: str) -> bool:
    """Whether Steppe has a compiled environment of this id."""
    return ALIASES.get(id, id) in COMPILED


def only_runs_compiled(spec: EnvironmentSpec) -> bool:
    """Whether gymnasium has no environment of this spec, or the spec asks for the compiled one."""
    if spec.backend != "auto" or not has_compiled(spec.id):
        return spec.backend == "compiled"
    import gymnasium

    return ALIASES.get(spec.id, spec.id) not in gymnasium.registry


def plays_atari(spec: EnvironmentSpec) -> bool:
    """Whether this is an Atari game with the standard preprocessing; the gymnasium backend shows whole frames."""
    return spec.backend == "auto" and spec.id.startswith(ATARI)


def make_compiled(spec: EnvironmentSpec) -> CompiledEnv:
    """The compiled environment of this spec, with its settings."""
    id = ALIASES.get(spec.id, spec.id)
    if id not in COMPILED:
        raise SpecError(
            f'environment "{spec.id}" has no compiled version ({", ".join(compiled_ids())} have one); '
            f'write "backend": "gymnasium" to run the original{did_you_mean(spec.id, compiled_ids())}'
        )
    return validate(_compiled(id), spec.settings, source=f'environment "{spec.id}"', path="environment.settings")


def catalogue(every: bool = False) -> list[ListedEnv]:
    """Steppe's own environments and one entry for each family; with `every`, each id of the installed packages."""
    entries = [
        ListedEnv(id, "compiled", _first_line(_compiled(id))) for id in sorted(compiled_ids(), key=_newest_first)
    ]
    entries += [
        ListedEnv("remote", "remote", "environments in another process, served by `steppe env serve`."),
        ListedEnv("ue4", "remote", "a game of Unreal Engine 4 with the old learning plug-in."),
    ]
    if not every:
        return entries + [
            ListedEnv(id, extra, f"and {others}{_missing(extra, module)}.") for id, extra, module, others in EXAMPLES
        ]
    own = {entry.id for entry in entries}
    return entries + [entry for entry in _registered() if entry.id not in own]


def settings_of(id: str) -> list[EnvironmentSetting]:
    """The settings of an environment, with their defaults."""
    id = ALIASES.get(id, id)
    if id in COMPILED:
        return list(_settings(_compiled(id)))
    if id.startswith(ATARI):
        from steppe.envs.gymnasium.atari import AtariSettings

        return list(_settings(AtariSettings))
    from steppe.specs.running.connections import CONNECTIONS

    if id in CONNECTIONS:
        return list(_settings(CONNECTIONS[id]))
    return list(_arguments(id))


def extra_of_registration(registration: Any) -> str | None:
    """Steppe's extra for the packages of a registered environment, or None."""
    entry = registration.entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return next((extra for start, (extra, _, _) in FAMILIES.items() if module.startswith(start)), None)


def extra_of_error(error: BaseException) -> str | None:
    """Steppe's extra for the package that `error` says is missing; gymnasium's own advice names gymnasium's extras."""
    import gymnasium

    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        named = re.search(GYMNASIUM_EXTRA, str(error))
        return None if named is None else STEPPE_EXTRAS.get(named[1].replace("-", "_"))
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return EXTRA_OF_MODULE.get(error.name.partition(".")[0])
    return None


def notices_of_limit(spec: EnvironmentSpec, requested: int | None, actual: int | None) -> tuple[str, ...]:
    """A notice if episodes end after `actual` timesteps although more were requested, with the setting that allows it.

    A longer episode is another task with other returns, so only the environment's own settings can lengthen it.
    """
    if requested is None or actual is None or actual >= requested:
        return ()
    if spec.id == "remote":
        way_out = "where it is served its settings can make them longer"
    elif plays_atari(spec):
        way_out = 'a larger "max_frames" in its settings makes them longer'
    elif ":" in spec.id:
        way_out = "only the code that makes it can make them longer"
    else:
        name = "max_steps" if spec.id.startswith("MiniGrid") else "max_episode_steps"
        way_out = f'"{name}": {requested} in its settings (environment.settings) makes them longer'
    return (
        f"max_timesteps_per_episode {requested:,} has no effect: episodes of {spec.id} end after {actual:,} timesteps "
        f"by themselves; {way_out}",
    )


def _newest_first(id: str) -> tuple[str, int]:
    """A sort key by which CartPole-v1 precedes CartPole-v0, whose description refers to it."""
    name, _, version = id.rpartition("-v")
    return name, -int(version)


def _compiled(id: str) -> type[CompiledEnv]:
    module, name = COMPILED[id]
    return getattr(import_module(f"steppe.envs.compiled.{module}"), name)


def _registered() -> Iterator[ListedEnv]:
    """Every id that gymnasium and the installed packages register."""
    import gymnasium

    for module in dict.fromkeys(module for _, module, _ in EXTRAS):
        with contextlib.suppress(ImportError):
            import_module(module)
    for id, registration in sorted(gymnasium.registry.items()):
        entry = registration.entry_point
        if callable(entry):
            continue  # an old version whose only purpose is to name its successor
        family = next((family for start, family in FAMILIES.items() if str(entry).startswith(start)), None)
        if family is None:
            yield ListedEnv(id, "gymnasium", "")
        else:
            extra, module, word = family
            yield ListedEnv(id, extra, f"{word}{_missing(extra, module)}.")


def _missing(extra: str, module: str) -> str:
    """The end of a line if a package is not installed."""
    return "" if find_module(module) is not None else f' (pip install "steppe[{extra}]")'


def _settings(model: type[BaseModel]) -> Iterator[EnvironmentSetting]:
    from steppe.specs.describing.docstrings import sentence_of

    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        yield EnvironmentSetting(name, default, " ".join(sentence_of(model, name).split()))


def _arguments(id: str) -> Iterator[EnvironmentSetting]:
    """The keyword arguments of an environment's class or callable, with the defaults of its registration."""
    from gymnasium.envs.registration import load_env_creator

    from steppe.envs.gymnasium.factory import find_callable, find_spec

    creator = find_callable(id) if ":" in id else None
    given, limit = {}, None
    if creator is None:
        registration = find_spec(id)
        entry = registration.entry_point
        creator = entry if callable(entry) else load_env_creator(entry)
        given, limit = registration.kwargs, registration.max_episode_steps
    for name, parameter in inspect.signature(creator).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "render_mode":
            default = "required" if parameter.default is parameter.empty else parameter.default
            yield EnvironmentSetting(name, given.get(name, default), "")
    yield EnvironmentSetting("max_episode_steps", limit, "How many timesteps an episode may last.")


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
