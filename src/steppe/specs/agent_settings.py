"""What every agent can be told, whatever it learns."""

from __future__ import annotations

from steppe.specs._base import Settings
from steppe.specs.preprocessing import PreprocessingSpec, RewardPreprocessingSpec


class AgentSettings(Settings):
    """Settings of every agent."""

    states_preprocessing: PreprocessingSpec | None = None
    """What is done to observations before the network sees them; part of the policy."""
    reward_preprocessing: RewardPreprocessingSpec | None = None
    """What is done to rewards before the agent learns from them; returns are counted before it."""
