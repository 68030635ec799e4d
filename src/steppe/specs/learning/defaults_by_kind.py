"""Defaults that depend on the kind of environment, for each agent.

A setting that is not in the table has the default of the agent's own `Settings`. A setting that the user gives always
wins.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, create_model

if TYPE_CHECKING:
    from steppe.specs.environment import EnvironmentSpec

Kind = Literal["pictures", "control", "far_goal", "other"]
"""`pictures` are Atari games; `control` is of robots and vehicles, observed as numbers of very different sizes;
`far_goal` is control whose only reward is at a goal that independent random actions hardly ever reach."""
Model = TypeVar("Model", bound=BaseModel)

_CONTROL = (
    "Ant-",
    "BipedalWalker",
    "HalfCheetah-",
    "Hopper-",
    "Humanoid",
    "InvertedDoublePendulum-",
    "InvertedPendulum-",
    "LunarLander-",
    "LunarLanderContinuous-",
    "MountainCar-",
    "Pendulum-",
    "Pusher-",
    "Reacher-",
    "Swimmer-",
    "Walker2d-",
)
"""The prefixes of the ids of these gymnasium environments."""
_FAR_GOAL = ("MountainCarContinuous-",)
_PICTURES = ("ALE/",)
_WORDS: dict[Kind, str] = {
    "pictures": "Atari games",
    "control": "robots and vehicles (MuJoCo, BipedalWalker, LunarLander, MountainCar, Pendulum and the like)",
    "far_goal": "MountainCarContinuous, whose goal random pushes hardly ever reach",
    "other": "all other environments",
}


@dataclass(frozen=True)
class Defaults:
    """Defaults for a kind of environment. All compare equal, since they are no part of a spec's value."""

    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Settings of the agent, as they would be written in a file; an object changes only the fields that it names."""
    num_envs: int | None = field(default=None, compare=False)
    """The number of environments that each worker steps together; None is the agent's own default."""
    environment: Mapping[str, bool] = field(default_factory=dict, compare=False)
    """`normalize_observations` and `normalize_rewards` of the environment."""


_ATARI_DQN = {
    "batch_size": 32,
    "update_frequency": 4,
    "learning_rate": 1e-4,
    "learning_starts": 20_000,
    "n_step": 1,
    "huber": True,
    "target_sync_frequency": 2_000,
    "memory": {"capacity": 100_000},
    "exploration": {"type": "epsilon_anneal", "final_epsilon": 0.01, "timesteps": 250_000},
}
_ATARI_PPO = {"epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4, "clip": 0.1, "entropy_coefficient": 0.01}
_SLOW_DRIFT = {"type": "ornstein_uhlenbeck", "theta": 0.05, "sigma": 0.3}
_NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}

TABLE: dict[str, dict[Kind, Defaults]] = {
    "dqn": {"pictures": Defaults(_ATARI_DQN)},
    "ddqn": {"pictures": Defaults(_ATARI_DQN)},
    "dqn_nstep": {"pictures": Defaults({name: value for name, value in _ATARI_DQN.items() if name != "n_step"})},
    "qr_dqn": {"pictures": Defaults(_ATARI_DQN | {"quantiles": 200, "learning_rate": 5e-5})},
    "ppo": {
        "pictures": Defaults(_ATARI_PPO),
        "control": Defaults(environment=_NORMALIZED),
        "far_goal": Defaults(environment=_NORMALIZED),
    },
    "sac": {"far_goal": Defaults({"drifting_noise": _SLOW_DRIFT})},
}
"""Agent -> kind of environment -> its defaults there."""


def kind_of(environment: EnvironmentSpec) -> Kind:
    """The kind of an environment, from its id and settings alone; nothing is imported."""
    return kind_of_id(environment.id, environment.settings)


def kind_of_id(id: str, settings: Mapping[str, Any]) -> Kind:
    """The kind of the environment with an id, such as `"ALE/Pong-v5"`, and these settings."""
    id = id.rpartition(":")[2]
    if id.startswith(_PICTURES) and settings.get("obs_type") != "ram":
        return "pictures"
    if id.startswith(_FAR_GOAL):
        return "far_goal"
    if id.startswith(_CONTROL):
        return "control"
    return "other"


def defaults_for(agent: str, kind: Kind) -> Defaults:
    """The defaults of an agent in a kind of environment."""
    return TABLE.get(agent, {}).get(kind, Defaults())


def sentences(agent: str) -> list[str]:
    """One sentence for each kind of environment in which an agent has other defaults."""
    found = []
    for kind, defaults in TABLE.get(agent, {}).items():
        words = [
            f"{name} {json.dumps(value)}" for name, value in (*_flat(defaults.settings), *_flat(defaults.environment))
        ]
        words += [] if defaults.num_envs is None else [f"num_envs {defaults.num_envs}"]
        found.append(f"Defaults for {_WORDS[kind]}: {', '.join(words)}.")
    return found


def with_defaults(model: type[Model], settings: Mapping[str, Any]) -> type[Model]:
    """A model that differs from `model` in the defaults of some fields only."""
    return _derived(model, json.dumps(settings, sort_keys=True)) if settings else model


@cache
def _derived(model: type[Model], settings: str) -> type[Model]:
    """A cached `with_defaults`: the same class each time, so that its instances can be compared."""
    fields: dict[str, Any] = {}
    for name, value in json.loads(settings).items():
        changed = copy.copy(model.model_fields[name])
        kind = changed.annotation
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            # A user who gives only some fields of this object gets these defaults for the others.
            kind, value = with_defaults(kind, value), {}
        changed.annotation = kind
        changed.default = value
        fields[name] = (kind, changed)
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields)


def _flat(settings: Mapping[str, Any], start: str = "") -> list[tuple[str, Any]]:
    """The settings as a flat list; those inside objects become `memory.capacity`."""
    flat: list[tuple[str, Any]] = []
    for name, value in settings.items():
        flat += _flat(value, f"{start}{name}.") if isinstance(value, dict) else [(f"{start}{name}", value)]
    return flat
