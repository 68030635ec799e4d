"""Which environments have a compiled twin, and how to make one. Names are answered without importing JAX."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.validation import validate
from steppe.specs.words import did_you_mean

if TYPE_CHECKING:
    from steppe.envs._base import JaxEnv

TWINS: dict[str, tuple[str, str]] = {
    "CartPole-v0": ("cartpole", "CartPoleV0"),
    "CartPole-v1": ("cartpole", "CartPoleV1"),
    "Acrobot-v1": ("acrobot", "Acrobot"),
    "MountainCar-v0": ("mountain_car", "MountainCar"),
    "MountainCarContinuous-v0": ("mountain_car", "MountainCarContinuous"),
    "Pendulum-v1": ("pendulum", "Pendulum"),
    "GridWorld-v0": ("grid_world", "GridWorld"),
}
ALIASES = {"GridWorld": "GridWorld-v0"}


def known_ids() -> list[str]:
    """The ids that run compiled, in alphabetical order."""
    return sorted(TWINS)


def has_twin(id: str) -> bool:
    """Whether this id can run compiled."""
    return ALIASES.get(id, id) in TWINS


def make_jax(spec: EnvironmentSpec) -> JaxEnv:
    """The compiled environment of this spec, with its settings applied."""
    id = ALIASES.get(spec.id, spec.id)
    if id not in TWINS:
        raise SpecError(
            f'environment "{spec.id}" has no compiled twin ({", ".join(known_ids())} have one); '
            f'write "backend": "gymnasium" to run the original{did_you_mean(spec.id, known_ids())}'
        )
    module, name = TWINS[id]
    twin: type[JaxEnv] = getattr(import_module(f"steppe.envs.{module}"), name)
    return validate(twin, spec.settings, source=f'environment "{spec.id}"', path="environment.settings")
