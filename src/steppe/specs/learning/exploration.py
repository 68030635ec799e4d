"""Exploration: `{"type": "epsilon_anneal", "final_epsilon": 0.1, ...}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from steppe.specs._base import Count, Natural, NonNegative, Number, Positive, Spec, Unit

_INITIAL = AliasChoices("initial_epsilon", "initial_value", "epsilon", "epsilon_start")
_FINAL = AliasChoices("final_epsilon", "final_value", "epsilon_final")
_TIMESTEPS = AliasChoices("timesteps", "epsilon_timesteps")


class ConstantExploration(Spec):
    """A constant share of random actions."""

    type: Literal["constant"] = "constant"
    constant: Unit = Field(0.0, validation_alias=AliasChoices("constant", "epsilon"))
    """The share; also spelled epsilon."""

    def epsilon(self, timestep: Any, xp: Any) -> Any:
        """The share of random actions."""
        return self.constant


class EpsilonAnneal(Spec):
    """A share of random actions that falls linearly."""

    type: Literal["epsilon_anneal", "linear_decay"] = "epsilon_anneal"
    initial_epsilon: Unit = Field(1.0, validation_alias=_INITIAL)
    """The share at the start."""
    final_epsilon: Unit = Field(0.1, validation_alias=_FINAL)
    """The share at the end."""
    timesteps: Count = Field(10_000, validation_alias=_TIMESTEPS)
    """The number of timesteps over which it falls."""
    start_timestep: Natural = 0
    """The timestep at which it begins to fall."""

    def epsilon(self, timestep: Any, xp: Any) -> Any:
        """The share of random actions."""
        fallen = xp.clip((timestep - self.start_timestep) / self.timesteps, 0.0, 1.0)
        return self.initial_epsilon + fallen * (self.final_epsilon - self.initial_epsilon)


class EpsilonDecay(Spec):
    """A share of random actions that falls exponentially."""

    type: Literal["epsilon_decay"] = "epsilon_decay"
    initial_epsilon: Unit = Field(1.0, validation_alias=_INITIAL)
    """The share at the start."""
    final_epsilon: Unit = Field(0.1, validation_alias=_FINAL)
    """The share at the end."""
    timesteps: Count = Field(10_000, validation_alias=_TIMESTEPS)
    """The number of timesteps over which it falls."""
    start_timestep: Natural = 0
    """The timestep at which it begins to fall."""
    half_lives: Positive = 10.0
    """The number of times it is halved in that time."""

    def epsilon(self, timestep: Any, xp: Any) -> Any:
        """The share of random actions."""
        passed = xp.clip((timestep - self.start_timestep) / self.timesteps, 0.0, 1.0)
        share = self.final_epsilon + (self.initial_epsilon - self.final_epsilon) * 0.5 ** (passed * self.half_lives)
        return xp.where(passed >= 1.0, self.final_epsilon, share)


class GaussianNoise(Spec):
    """Normal noise added to continuous actions, whose range counts as -1 to 1."""

    type: Literal["gaussian_noise"] = "gaussian_noise"
    sigma: NonNegative = 0.1
    """The standard deviation of the noise."""
    mu: Number = 0.0
    """The mean of the noise."""


class OrnsteinUhlenbeck(Spec):
    """Noise that is correlated over time, so that an action is tried for a while (Uhlenbeck and Ornstein 1930)."""

    type: Literal["ornstein_uhlenbeck"] = "ornstein_uhlenbeck"
    sigma: NonNegative = 0.2
    """The standard deviation of each change."""
    mu: Number = 0.0
    """The mean to which the noise returns."""
    theta: Unit = 0.15
    """The strength with which it returns to the mean."""


def _understood(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _of_choices(value: Any) -> Any:
    value = _understood(value)
    if isinstance(value, dict) and value.get("type") in ("gaussian_noise", "ornstein_uhlenbeck"):
        raise ValueError(
            f'"{value["type"]}" is for continuous actions; of discrete ones a share is random: use "epsilon_anneal", '
            '"epsilon_decay" or "constant"'
        )
    return value


RandomActions = Annotated[
    Annotated[ConstantExploration | EpsilonAnneal | EpsilonDecay, Field(discriminator="type", title="exploration")],
    BeforeValidator(_of_choices),
]
"""Exploration of discrete actions."""
Noise = Annotated[
    Annotated[
        ConstantExploration | EpsilonAnneal | EpsilonDecay | GaussianNoise | OrnsteinUhlenbeck,
        Field(discriminator="type", title="exploration"),
    ],
    BeforeValidator(_understood),
]
"""Exploration of continuous actions."""
DriftingNoiseSpec = Annotated[OrnsteinUhlenbeck, BeforeValidator(_understood)]
"""Noise that replaces independent normal numbers when actions are sampled."""
