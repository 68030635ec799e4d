"""Settings that every agent has."""

from __future__ import annotations

from typing import Any, Self, get_args

from pydantic import BaseModel, ModelWrapValidatorHandler, model_validator

from steppe.specs._base import Settings
from steppe.specs.describing.field_rows import as_written
from steppe.specs.learning.preprocessing import PreprocessingSpec, RewardPreprocessingSpec

COMPLETED = ("optimizer", "baseline_optimizer", "critic_optimizer", "exploration")
"""Settings that are objects with a type; an object without one changes parts of the default."""


class AgentSettings(Settings):
    """Settings of every agent."""

    states_preprocessing: PreprocessingSpec | None = None
    """The stages that prepare observations for the network; part of the policy."""
    reward_preprocessing: RewardPreprocessingSpec | None = None
    """The stages that prepare rewards for learning; returns are counted before them."""

    @property
    def counts_episodes(self) -> bool:
        """Whether rollouts end after a number of episodes."""
        return False

    def horizon_for(self, num_envs: int) -> int:
        """The number of timesteps that each environment takes between two updates."""
        raise NotImplementedError

    @property
    def minibatch_count(self) -> int:
        """The number of equal minibatches that each rollout is cut into."""
        return 1

    def minibatch_size(self, timesteps: int) -> int:
        """The number of a rollout's timesteps that each optimiser step learns from."""
        return timesteps

    @property
    def timesteps_before_learning(self) -> int:
        """The number of timesteps collected before the first update; 0 if the first rollout is learned from."""
        return 0

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about settings with less effect than they seem to have."""
        return ()

    @model_validator(mode="wrap")  # around the validators of subclasses that run before
    @classmethod
    def _with_types_and_without_nulls(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        data = {name: value for name, value in data.items() if value is not None or cls._may_be_null(name)}
        for name in COMPLETED:
            given, field = data.get(name), cls.model_fields.get(name)
            if field is None or not isinstance(given, dict) or not given or "type" in given:
                continue
            # The object changes the default, as `--set agent.exploration.timesteps=9` does.
            default = field.get_default(call_default_factory=True)
            if isinstance(default, BaseModel):
                usual = as_written(default)
                data[name] = ({"type": usual} if isinstance(usual, str) else usual) | given
        return handler(data)

    @classmethod
    def _may_be_null(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        return field is None or type(None) in get_args(field.annotation)
