"""Which environment, and how it is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from steppe.specs._base import Flag, Spec
from steppe.specs.running.connections import check_connection, gathered
from steppe.tensorforce.environment_names import Notices, in_present_words

IN_PROCESS = "in-process:"
"""How the ids of environments begin that are objects of the process that trains, such as a class of a notebook."""
Backend = Literal["auto", "compiled", "gymnasium"]
Vectorization = Literal["auto", "sync", "processes", "native"]


def _with_type(wrapper: Any) -> Any:
    if isinstance(wrapper, str):
        wrapper = {"type": wrapper}
    if isinstance(wrapper, dict) and not (isinstance(wrapper.get("type"), str) and wrapper["type"]):
        raise ValueError('a wrapper is "module.Name", or an object with "type" and its keyword arguments')
    return wrapper


Wrapper = Annotated[dict[str, Any], BeforeValidator(_with_type)]
"""`type` is where a wrapper's class is found, everything else its keyword arguments."""


class EnvironmentSpec(Spec):
    """An environment: a plain string `"CartPole-v1"` means `{"id": "CartPole-v1"}`."""

    id: Annotated[str, Field(min_length=1)]
    """A gymnasium id, one of Steppe's own environments, or `module:callable`; also spelled `gym_id` or `type`."""
    backend: Backend = "auto"
    """`compiled` is Steppe's JAX twin, `gymnasium` the original; `auto` takes the twin where there is one and neither
    wrappers nor vectorization are given, and plays Atari with the standard preprocessing."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the environment."""
    wrappers: list[Wrapper] = Field(default_factory=list)
    """What goes around the gymnasium original, innermost first: `"gymnasium.wrappers.NormalizeReward"`,
    `"module:Name"`, or an object with that as `type` and its keyword arguments."""
    normalize_observations: Flag = False
    """Whether observations are shifted and scaled to mean 0 and variance 1, by running statistics."""
    normalize_rewards: Flag = False
    """Whether rewards are scaled by the running deviation of the return."""
    vectorization: Vectorization = "auto"
    """How several environments are stepped together on the gymnasium backend, which runs where this is given."""
    _notices: Notices = PrivateAttr(default_factory=Notices)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of how the file was understood; no part of the value."""
        return self._notices.sentences

    @model_validator(mode="wrap")
    @classmethod
    def _understand_spellings(cls, data: Any, handler: ModelWrapValidatorHandler[EnvironmentSpec]) -> EnvironmentSpec:
        if isinstance(data, str):
            data = {"id": data}
        if not isinstance(data, dict):
            return handler(data)
        present, notices = in_present_words(data)
        spec = handler(gathered(present, cls.model_fields))
        check_connection(spec)
        spec._notices = Notices(notices)
        return spec
