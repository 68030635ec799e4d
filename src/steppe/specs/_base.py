"""The base of every spec: a strict pydantic model with a docstring under each field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel

T = TypeVar("T")


def _whole(value: Any) -> Any:
    # JSON has one kind of number, so 1e6 is a valid way to write a million.
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Strict: a quoted number, or true instead of a number, is a mistake that the user should see.
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Unit = Annotated[float, Field(strict=True, ge=0.0, le=1.0)]
Positive = Annotated[float, Field(strict=True, gt=0.0)]
NonNegative = Annotated[float, Field(strict=True, ge=0.0)]
Count = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)]
Natural = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)]


class Spec(BaseModel):
    """A frozen model that refuses unknown fields; the docstring under a field describes it (docstrings.py)."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        # Most models are built as parts of others; building them alone as well would slow the start.
        defer_build=True,
    )


class ListSpec(RootModel[T], Generic[T]):
    """A list that is a spec of its own."""

    model_config = ConfigDict(defer_build=True)


@dataclass(frozen=True)
class Notices:
    """Notices for the user about how a file was read. All compare equal, since they are no part of a spec's value."""

    sentences: tuple[str, ...] = field(default=(), compare=False)


class Settings(Spec):
    """The settings of one agent: each with its default, its bounds and one sentence."""
