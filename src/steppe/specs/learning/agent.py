"""Which agent, and its settings."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)

from steppe import tensorforce
from steppe.errors import SpecError
from steppe.specs._base import Spec
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.learning.defaults_by_kind import Defaults, with_defaults
from steppe.specs.loading.validation import Origins, shown, validate
from steppe.tensorforce.defaults import AGENTS, OWNERS, is_for_tensorforce, with_optimizers
from steppe.tensorforce.defaults import FIELD as DEFAULTS_OF
from steppe.tensorforce.defaults import defaults as tensorforces_defaults
from steppe.tensorforce.environment_names import Notices
from steppe.tensorforce.names import present_name, stand_in_notice

Model = TypeVar("Model", bound=BaseModel)
ModelClass = type[Model]  # inside AgentSpec, `type` is a field


class _ReadSettings(dict[Any, Any]):
    """An agent's model -> the settings as it has read them; no part of a spec's value."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ReadSettings)

    def __ne__(self, other: object) -> bool:
        return not self == other


class AgentSpec(Spec):
    """An agent: a plain string `"ppo"` means `{"type": "ppo"}`, and every further key is one of its settings."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1)]
    """Which algorithm; `steppe agents` lists them."""
    _origins: Origins = PrivateAttr(default_factory=Origins)
    _defaults: Defaults = PrivateAttr(default_factory=Defaults)
    _notices: Notices = PrivateAttr(default_factory=Notices)
    _read: _ReadSettings = PrivateAttr(default_factory=lambda: _ReadSettings())

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of how the agent's name was understood; no part of the value."""
        return self._notices.sentences

    @property
    def defaults(self) -> Defaults:
        """What differs from the agent's own defaults in the kind of environment that it learns in."""
        return self._defaults

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but `type` and `defaults_of`, in the order they were written; steppe.agents checks them."""
        return {name: value for name, value in (self.model_extra or {}).items() if name != DEFAULTS_OF}

    @property
    def is_for_tensorforce(self) -> bool:
        """Whether settings that are not given are as they were in TensorForce."""
        return (self.model_extra or {}).get(DEFAULTS_OF) == "tensorforce"

    @property
    def origins(self) -> Origins:
        """Where each part was written, for errors found later; no part of the value."""
        return self._origins

    def settings_as(self, model: ModelClass[Model]) -> Model:
        """The settings, checked by an agent's own model; errors name the file they were written in.

        Those that are not given have the defaults of the environment's kind, else the model's own. Read once.
        """
        if model not in self._read:
            self._read[model] = self._read_as(model)
        settings: Model = self._read[model]
        return settings

    def _read_as(self, model: ModelClass[Model]) -> Model:
        model = with_defaults(model, self._defaults.settings)
        if not issubclass(model, AgentSettings):
            return validate(model, self.settings, source=self._origins)
        given, is_old = self.settings, self.is_for_tensorforce
        try:
            reading = tensorforce.understand(
                with_optimizers(given) if is_old else given, model.model_fields, is_old=is_old
            )
        except tensorforce.Misread as error:
            raise SpecError(self._mistake(error)) from None
        settings = validate(model, reading.data, source=self._origins.with_moved(reading.places))
        return settings.with_notices(reading.notices)

    def suited_to(self, defaults: Defaults) -> AgentSpec:
        """The same agent with other defaults."""
        agent = self.model_copy()
        agent._defaults, agent._read = defaults, _ReadSettings()
        return agent

    def written_in(self, origins: Origins) -> None:
        """Remember where the parts were written."""
        self._origins, self._read = origins, _ReadSettings()

    @model_validator(mode="wrap")
    @classmethod
    def _tell_of_a_stand_in(cls, data: Any, handler: ModelWrapValidatorHandler[AgentSpec]) -> AgentSpec:
        spec = handler(data)
        notice = stand_in_notice(data.get("type") if isinstance(data, dict) else data)
        if notice is not None:
            spec._notices = Notices((notice,))
        return spec

    @model_validator(mode="before")
    @classmethod
    def _understand_string(cls, data: Any) -> Any:
        data = {"type": data} if isinstance(data, str) else data
        if not isinstance(data, dict) or not isinstance(word := data.get("type"), str):
            return data
        settings = {name: value for name, value in data.items() if name not in ("type", DEFAULTS_OF)}
        if (owner := data.get(DEFAULTS_OF)) is None:
            is_old = is_for_tensorforce(present_name(word), word, settings)
            return {"type": word} | ({DEFAULTS_OF: "tensorforce"} if is_old else {}) | settings
        if owner not in OWNERS:
            raise ValueError(f'{DEFAULTS_OF} must be "steppe" or "tensorforce", not {shown(owner)}')
        if owner == "tensorforce" and present_name(word) not in AGENTS:
            raise ValueError(f'{DEFAULTS_OF} cannot be "tensorforce": TensorForce had no agent "{present_name(word)}"')
        return data

    @field_validator("type")
    @classmethod
    def _has_present_name(cls, word: str) -> str:
        return present_name(word)

    @model_validator(mode="after")
    def _has_tensorforces_defaults(self) -> AgentSpec:
        if self.is_for_tensorforce:
            settings = tensorforces_defaults(self.type, self.settings)
            # There was one environment, and episodes of several end at different times.
            self._defaults = Defaults(settings, num_envs=1 if "rollout_episodes" in settings else None)
        return self

    def _mistake(self, error: tensorforce.Misread) -> str:
        """Where it stands and why."""
        value: Any = self.settings
        for step in error.steps:
            value = value.get(step) if isinstance(value, dict) else None
        what = f"value {shown(value)}" if error.steps else "settings"
        return f"wrong {what}{self._origins.place(*error.steps)}; {error}"
