"""Which agent, and its settings."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from steppe.specs._base import Spec
from steppe.specs.validation import Origins, validate

Model = TypeVar("Model", bound=BaseModel)
ModelClass = type[Model]  # inside AgentSpec, `type` is a field


class AgentSpec(Spec):
    """An agent: a plain string `"ppo"` means `{"type": "ppo"}`, and every further key is one of its settings."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1)]
    """Which algorithm; `steppe agents` lists them."""
    _origins: Origins = PrivateAttr(default_factory=Origins)

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but `type`, in the order they were written; steppe.agents checks them."""
        return dict(self.model_extra or {})

    @property
    def origins(self) -> Origins:
        """Where each part was written, for errors found later; no part of the value."""
        return self._origins

    def settings_as(self, model: ModelClass[Model]) -> Model:
        """The settings, checked by an agent's own model; errors name the file they were written in."""
        return validate(model, self.settings, source=self._origins)

    def written_in(self, origins: Origins) -> None:
        """Remember where the parts were written."""
        self._origins = origins

    @model_validator(mode="before")
    @classmethod
    def _understand_string(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @field_validator("type")
    @classmethod
    def _drop_old_ending(cls, word: str) -> str:
        # TensorForce registered each agent under both spellings.
        return word.removesuffix("_agent") or word
