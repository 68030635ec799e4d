"""Which environment, and how it is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from steppe.specs._base import Flag, Spec

Backend = Literal["auto", "compiled", "gymnasium"]
Vectorization = Literal["auto", "sync", "processes", "native"]
_SPELLINGS = ("id", "gym_id", "type")


class EnvironmentSpec(Spec):
    """An environment: a plain string `"CartPole-v1"` means `{"id": "CartPole-v1"}`."""

    id: Annotated[str, Field(min_length=1)]
    """A gymnasium id, one of Steppe's own environments, or `module:callable`; also spelled `gym_id` or `type`."""
    backend: Backend = "auto"
    """`compiled` is Steppe's JAX twin, `gymnasium` the original; `auto` takes the twin where there is one."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the environment."""
    normalize_observations: Flag = False
    """Whether observations are shifted and scaled to mean 0 and variance 1, by running statistics."""
    normalize_rewards: Flag = False
    """Whether rewards are scaled by the running deviation of the return."""
    vectorization: Vectorization = "auto"
    """How several environments are stepped together on the gymnasium backend."""

    @model_validator(mode="before")
    @classmethod
    def _understand_spellings(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"id": data}
        if not isinstance(data, dict):
            return data
        given = [name for name in _SPELLINGS if name in data]
        if not given:
            return data
        # tfcli wrote both: "type" named the wrapper around gym, "gym_id" the environment.
        name = "gym_id" if given == ["gym_id", "type"] else given[0]
        ignored = {"gym_id", "type"} if name == "gym_id" else {name}
        return {"id": data[name]} | {key: value for key, value in data.items() if key not in ignored}
