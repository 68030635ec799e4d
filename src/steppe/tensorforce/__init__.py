"""TensorForce's words for settings: understood where they mean something here, explained where they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from steppe.tensorforce import elsewhere, optimizer_words, parts, rollout_words, without_effect
from steppe.tensorforce.renamed import SAME_THING, rename, settle_nulls
from steppe.tensorforce.translation import FROM_EPISODES, Misread, Reading

__all__ = ["FROM_EPISODES", "SAME_THING", "Misread", "Reading", "understand"]


def understand(data: dict[str, Any], fields: Mapping[str, FieldInfo], *, is_old: bool = False) -> Reading:
    """The settings in today's words, what to tell the user, and where each was written; Misread says why not.

    `is_old` says that it is a file for TensorForce, even if none of its words tells.
    """
    reading = Reading(dict(data), fields, is_old)
    without_effect.drop(reading)
    rename(reading)
    parts.settle_baseline(reading)
    elsewhere.explain(reading)
    settle_nulls(reading)
    parts.settle_others(reading)
    rollout_words.settle(reading)
    optimizer_words.settle(reading)
    rollout_words.count_updates(reading)
    return reading
