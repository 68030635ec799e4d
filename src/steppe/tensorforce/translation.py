"""Settings while they are put into today's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from steppe.specs.loading.validation import Steps, join_path

_OLD_FILES_SAY = (
    "batched_observe",
    "batching_capacity",
    "execution",
    "explorations_spec",
    "first_update",
    "keep_last_timestep",
    "preprocessing",
    "repeat_update",
    "saver",
    "saver_spec",
    "scope",
    "states_preprocessing_spec",
    "summarizer",
    "summary_spec",
    "update_mode",
)


FROM_EPISODES = "TensorForce's agent of this name learned from the latest episodes"
"""Marks the `memory` of an agent that has a replay memory here and had none there."""


class Misread(ValueError):
    """Words that cannot be understood, and the way to them."""

    def __init__(self, sentence: str, *steps: str | int) -> None:
        super().__init__(sentence)
        self.steps = steps


class Reading:
    """The settings so far, sentences for the user, and where what now has another name was written."""

    def __init__(self, data: dict[str, Any], fields: Mapping[str, FieldInfo], is_old: bool = False) -> None:
        self.data, self.fields, self.is_old = data, fields, is_old
        self.notices: list[str] = []
        self.places: dict[Steps, Steps] = {}
        """From the way in today's words to the way in the file."""
        self.counts_timesteps = is_old or any(data.get(word) is not None for word in _OLD_FILES_SAY)
        """Whether it is a file for TensorForce, where target_sync_frequency counted timesteps."""

    @property
    def family(self) -> str:
        """How the agent learns: from a "memory", from "rollouts" as TensorForce knew them, "otherwise" or "never"."""
        if "memory" in self.fields:
            return "memory"
        if "rollout_timesteps" in self.fields:
            return "rollouts"
        return "otherwise" if "learning_rate" in self.fields else "never"

    @property
    def learned_from_episodes(self) -> bool:
        """Whether it is an agent that has a replay memory here and had none in TensorForce."""
        return "memory" in self.fields and FROM_EPISODES in self.fields["memory"].metadata

    def old(self, words: Iterable[str]) -> list[str]:
        """Those of the words that were written and are no settings of this agent."""
        return [word for word in words if word in self.data and word not in self.fields]

    def put(self, name: str, value: Any, *written: str | int) -> None:
        """A setting by its name of today; saying a thing twice is a mistake."""
        if name in self.data:
            other = join_path("", self.written(name))
            raise Misread(f'"{other}" and "{join_path("", written)}" say the same thing; give one of them')
        self.data[name] = value
        self.places[(name,)] = written

    def written(self, *steps: str | int) -> Steps:
        """Where what now stands at `steps` was written."""
        for length in range(len(steps), 0, -1):
            if steps[:length] in self.places:
                return (*self.places[steps[:length]], *steps[length:])
        return steps

    def default(self, name: str) -> Any:
        """What a setting is when it is not given."""
        return self.fields[name].get_default(call_default_factory=True)
