"""What every agent can be told, whatever it learns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from steppe import tensorforce
from steppe.specs._base import Settings
from steppe.specs.learning.preprocessing import PreprocessingSpec, RewardPreprocessingSpec
from steppe.tensorforce.environment_names import Notices


class AgentSettings(Settings):
    """Settings of every agent."""

    states_preprocessing: PreprocessingSpec | None = None
    """What is done to observations before the network sees them; part of the policy."""
    reward_preprocessing: RewardPreprocessingSpec | None = None
    """What is done to rewards before the agent learns from them; returns are counted before it."""
    _notices: Notices = PrivateAttr(default_factory=Notices)

    @property
    def counts_episodes(self) -> bool:
        """Whether rollouts end after a number of episodes."""
        return False

    def horizon_for(self, num_envs: int) -> int:
        """How many timesteps each environment takes between two updates."""
        raise NotImplementedError

    @property
    def minibatch_count(self) -> int:
        """Into how many equal minibatches each rollout must be cut."""
        return 1

    def minibatch_size(self, timesteps: int) -> int:
        """How many of a rollout's timesteps each optimiser step learns from."""
        return timesteps

    @property
    def timesteps_before_learning(self) -> int:
        """How many timesteps are collected before the first update; 0 if it learns from the first rollout on."""
        return 0

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of how the settings were understood; no part of the value."""
        return self._notices.sentences

    def with_notices(self, sentences: Iterable[str]) -> Self:
        """The same settings, which remember what to tell the user."""
        self._notices = Notices((*self._notices.sentences, *sentences))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _in_present_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        reading = tensorforce.understand(data, cls.model_fields)
        return handler(reading.data).with_notices(reading.notices)
