"""Data while it is translated from TensorForce's words into today's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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


class Translation(NamedTuple):
    """Data in today's words, with notices."""

    data: Any
    notices: tuple[str, ...] = ()
    """One sentence for each thing whose meaning here may surprise its author."""
    moved: Mapping[Steps, Steps] = MappingProxyType({})
    """From the path of a value in `data` to its path in the file, if they differ."""


class TranslationError(ValueError):
    """A value that cannot be translated, and the path to it."""

    def __init__(self, sentence: str, *steps: str | int, is_joint: bool | None = None) -> None:
        super().__init__(sentence)
        self.steps = steps
        self.is_joint = not steps if is_joint is None else is_joint
        """Whether several fields of an object are wrong together, so that the error does not show its value."""

    def below(self, *steps: str | int) -> TranslationError:
        """The same error for data at `steps` of a whole."""
        return TranslationError(str(self), *steps, *self.steps, is_joint=self.is_joint)


class AgentTranslation:
    """An agent's settings so far, notices for the user, and the old path of each setting that has moved."""

    def __init__(
        self,
        name: str,
        fields: Collection[str],
        data: dict[str, Any],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_old: bool = False,
    ) -> None:
        self.name, self.data, self.is_old = name, data, is_old
        self.fields = fields
        """The names of all settings that the agent has today."""
        self.defaults = defaults
        self.notices: list[str] = []
        self.moved: dict[Steps, Steps] = {}
        """From the path in today's words to the path in the file."""
        self.counts_timesteps = is_old or any(data.get(word) is not None for word in _OLD_FILES_SAY)
        """Whether target_sync_frequency counts timesteps, as in files for TensorForce."""

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
        """Whether the agent has a replay memory here, and learned from its latest episodes in TensorForce."""
        return self.name == "dqn_nstep"

    def old(self, words: Iterable[str]) -> list[str]:
        """Those of `words` that are given and are no settings of this agent."""
        return [word for word in words if word in self.data and word not in self.fields]

    def put(self, name: str, value: Any, *written: str | int) -> None:
        """Adds a setting by today's name, written at this path; giving it twice is an error."""
        if name in self.data:
            other = join_path("", self.written(name))
            raise TranslationError(f'"{other}" and "{join_path("", written)}" say the same thing; give one of them')
        self.data[name] = value
        self.moved[(name,)] = written

    def written(self, *steps: str | int) -> Steps:
        """The path in the file of the value that now stands at `steps`."""
        for length in range(len(steps), 0, -1):
            if steps[:length] in self.moved:
                return (*self.moved[steps[:length]], *steps[length:])
        return steps

    def number(self, name: str) -> Any:
        """The value of batch_size, update_frequency or updates, given or by default."""
        return self.data.get(name, self.defaults.get(name))
