"""How often something is done: every so many seconds, episodes or timesteps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

FrequencyUnit = Literal["s", "e", "t"]
_WRITTEN = re.compile(r"(?P<amount>\d+(\.\d+)?([eE][+-]?\d+)?)\s*(?P<unit>[set]?)")
_PATTERN = r"^\s*\d+(\.\d+)?([eE][+-]?\d+)?\s*[set]?\s*$"
_RULE = 'a frequency is written "600s" (seconds), "100e" (episodes) or "5000t" (timesteps); a bare number is seconds'


@dataclass(frozen=True)
class Frequency:
    """Every `amount` seconds ("s"), episodes ("e") or timesteps ("t")."""

    amount: float
    unit: FrequencyUnit = "s"

    def __post_init__(self) -> None:
        if not math.isfinite(self.amount) or self.amount <= 0:
            raise ValueError("a frequency must be more than 0")
        if self.unit != "s" and self.amount != int(self.amount):
            raise ValueError("a frequency in episodes or timesteps must be a whole number of them")

    @classmethod
    def parse(cls, value: Any) -> Frequency:
        """Parses `"600s"`, `"100e"`, `"5000t"` or a bare number of seconds; a ValueError explains mistakes."""
        if isinstance(value, Frequency):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(value)
        match = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(_RULE)
        return cls(float(match["amount"]), match["unit"] or "s")  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{int(self.amount) if self.amount == int(self.amount) else self.amount}{self.unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        text = {"type": "string", "pattern": _PATTERN}
        return {"anyOf": [text, {"type": "number", "exclusiveMinimum": 0}]}
