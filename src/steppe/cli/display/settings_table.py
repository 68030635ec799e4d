"""The settings of one experiment, as `experiment show` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from steppe.records.page import setting
from steppe.records.settings import groups_of, knows_defaults

NOT_BEGUN = "only those that are written in its file: a run notes its defaults when it starts"


def setting_lines(
    experiment: Mapping[str, Any], policy: Mapping[str, Any] | None = None, *, everything: bool = False
) -> Iterator[tuple[str, bool]]:
    """(line, whether it is a heading); a star stands behind a setting that was given."""
    knows = knows_defaults(experiment)
    yield f"settings ({'* was given, the others are defaults' if knows else NOT_BEGUN})", True
    for group in groups_of(experiment, policy, everything=everything):
        yield f"  {group.name}", True
        width = max(len(each.name) for each in group.settings)
        for each in group.settings:
            yield f"    {each.name:<{width}}  {_shown(each.value)}{' *' if each.is_given else ''}", False
    if not everything:
        yield "  what is not set or does not apply to this run is left out; --all shows it too", False


def _shown(value: Any) -> str:
    """Text as it is, a layer or a space in words, everything else as the file has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value:
        return setting(value)
    return json.dumps(value)
