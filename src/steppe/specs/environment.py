"""The environment of an experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from steppe.specs._base import Flag, Notices, Spec
from steppe.specs.running.connections import check_connection, gathered

IN_PROCESS = "in-process:"
"""The prefix of ids of environments that are objects of this process, such as a class of a notebook."""
Backend = Literal["auto", "compiled", "gymnasium"]
Vectorization = Literal["auto", "sync", "processes", "native"]


def _with_type(wrapper: Any) -> Any:
    if isinstance(wrapper, str):
        wrapper = {"type": wrapper}
    if isinstance(wrapper, dict) and not (isinstance(wrapper.get("type"), str) and wrapper["type"]):
        raise ValueError('a wrapper is "module.Name", or an object with "type" and its keyword arguments')
    return wrapper


Wrapper = Annotated[dict[str, Any], BeforeValidator(_with_type)]
"""`type` is the path of a wrapper's class, every other key one of its keyword arguments."""


class EnvironmentSpec(Spec):
    """An environment: a plain string `"CartPole-v1"` means `{"id": "CartPole-v1"}`."""

    id: Annotated[str, Field(min_length=1)]
    """A gymnasium id, one of Steppe's own environments, or `module:callable`; also spelled `gym_id` or `type`."""
    backend: Backend = "auto"
    """`compiled` is Steppe's JAX version, `gymnasium` the original; `auto` takes the compiled one if it exists
    and neither wrappers nor vectorization are given, and plays Atari with the standard preprocessing."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the environment."""
    wrappers: list[Wrapper] = Field(default_factory=list)
    """The wrappers of the gymnasium original, innermost first: `"gymnasium.wrappers.NormalizeReward"`,
    `"module:Name"`, or an object with that as `type` and its keyword arguments."""
    normalize_observations: Flag = False
    """Whether observations are shifted and scaled to mean 0 and variance 1, by running statistics."""
    normalize_rewards: Flag = False
    """Whether rewards are scaled by the running deviation of the return."""
    vectorization: Vectorization = "auto"
    """How several environments are stepped together on the gymnasium backend; giving it selects that backend."""
    _notices: Notices = PrivateAttr(default_factory=Notices)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about how the file was read; no part of the value."""
        return self._notices.sentences

    def with_notices(self, sentences: tuple[str, ...]) -> EnvironmentSpec:
        """The same environment with these notices."""
        self._notices = Notices(sentences)
        return self

    @model_validator(mode="before")
    @classmethod
    def _understand_spellings(cls, data: Any) -> Any:
        data = {"id": data} if isinstance(data, str) else data
        if not isinstance(data, dict):
            return data
        if "id" not in data and (name := "gym_id" if "gym_id" in data else "type") in data:
            data = {"id": data[name]} | {key: data[key] for key in data if key not in ("gym_id", "type")}
        if data.get("wrappers"):
            if data.get("backend") == "compiled":
                raise ValueError('wrappers go around gymnasium\'s original; leave out "backend": "compiled"')
            data = data | {"backend": "gymnasium"}
        if data.get("backend") == "compiled" and data.get("vectorization", "auto") != "auto":
            raise ValueError(
                "vectorization says how gymnasium's original is stepped; leave it out, or leave out "
                '"backend": "compiled"'
            )
        return gathered(data, cls.model_fields)

    @model_validator(mode="after")
    def _has_a_valid_connection(self) -> EnvironmentSpec:
        check_connection(self)
        return self
