"""The agent and its settings."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from steppe.specs._base import Spec
from steppe.specs.learning.defaults_by_kind import Defaults, with_defaults
from steppe.specs.loading.validation import Origins, validate

Model = TypeVar("Model", bound=BaseModel)
ModelClass = type[Model]  # inside AgentSpec, `type` is a field
DEFAULTS_OF = "defaults_of"
"""The field of an agent that selects its defaults, "steppe" or "tensorforce"; users may write it."""
DEFAULTS = "defaults"
"""The field with the defaults themselves, written when a file for TensorForce is loaded."""
TENSORFORCES_DEFAULTS = (
    "it is an agent for TensorForce, so that the settings it leaves out are as they were there; with "
    '"defaults_of": "steppe" (--set agent.defaults_of=steppe) they are Steppe\'s'
)


class _ReadSettings(dict[Any, Any]):
    """Cache: model -> the settings as it has read them; no part of a spec's value."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ReadSettings)

    def __ne__(self, other: object) -> bool:
        return not self == other


class AgentSpec(Spec):
    """An agent: a plain string `"ppo"` means `{"type": "ppo"}`, and every further key is one of its settings."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1)]
    """The algorithm; `steppe agents` lists them."""
    _origins: Origins = PrivateAttr(default_factory=Origins)
    _defaults: Defaults = PrivateAttr(default_factory=Defaults)
    _read: _ReadSettings = PrivateAttr(default_factory=lambda: _ReadSettings())

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about the defaults."""
        return (TENSORFORCES_DEFAULTS,) if self.is_for_tensorforce else ()

    @property
    def defaults(self) -> Defaults:
        """The defaults that differ from the agent's own, because of the kind of environment or an old file."""
        return self._defaults

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in the order they were written; `settings_as` checks them."""
        return {name: value for name, value in self._extra.items() if name not in (DEFAULTS_OF, DEFAULTS)}

    @property
    def is_for_tensorforce(self) -> bool:
        """Whether settings that are not given have TensorForce's defaults."""
        return self._extra.get(DEFAULTS_OF) == "tensorforce"

    @property
    def origins(self) -> Origins:
        """The file and place of each part, for errors found later; no part of the value."""
        return self._origins

    def settings_as(self, model: ModelClass[Model]) -> Model:
        """The settings, checked by an agent's own model; errors name the file of the settings.

        Missing ones have the defaults of the environment's kind, else the model's own. Read once.
        """
        if model not in self._read:
            self._read[model] = self._read_as(model)
        settings: Model = self._read[model]
        return settings

    def _read_as(self, model: ModelClass[Model]) -> Model:
        return validate(with_defaults(model, self._defaults.settings), self.settings, source=self._origins)

    def suited_to(self, defaults: Defaults) -> AgentSpec:
        """The same agent with other defaults."""
        agent = self.model_copy()
        agent._defaults, agent._read = defaults, _ReadSettings()
        return agent

    def written_in(self, origins: Origins) -> None:
        """Stores the origins of the parts."""
        self._origins, self._read = origins, _ReadSettings()

    @property
    def _extra(self) -> dict[str, Any]:
        return self.model_extra or {}

    @model_validator(mode="before")
    @classmethod
    def _understand_string(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _has_its_defaults(self) -> AgentSpec:
        if self.is_for_tensorforce:
            settings = self._extra.get(DEFAULTS)
            if not isinstance(settings, dict):
                raise ValueError(
                    "the defaults of TensorForce are missing; read the file with steppe.spec_files, or leave out "
                    '"defaults_of"'
                )
            # TensorForce had one environment; episodes of several end at different times.
            self._defaults = Defaults(settings, num_envs=1 if "rollout_episodes" in settings else None)
        return self
