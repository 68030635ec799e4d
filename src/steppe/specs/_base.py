"""What every spec and every group of settings is: a strict pydantic model whose fields document themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Spec(BaseModel):
    """Unknown fields are errors, values are frozen, and a docstring under a field is its description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )


class Settings(Spec):
    """The settings of one agent: each with its default, its bounds and one sentence."""
