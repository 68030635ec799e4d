from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Literal

import pytest
from pydantic import AliasChoices, Field

from steppe.specs._base import Count, Positive, Spec, Unit
from steppe.specs.describing import field_rows
from steppe.specs.describing.field_rows import REQUIRED
from steppe.specs.learning.layer_options import Activation
from steppe.specs.learning.network import Layer, NetworkSpec
from steppe.specs.learning.optimizer import Adam, MultiStep, OptimizerSpec
from steppe.specs.running.frequency import Frequency


class Inner(Spec):
    """A group."""

    type: Literal["small", "large"] = "small"
    """Which."""
    capacity: Count = 10
    """How many."""


class Everything(Spec):
    """One of each kind of setting."""

    share: Unit = 0.5
    """A share."""
    fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """A fraction."""
    count: Count | None = None
    """A count."""
    either: bool | Positive = True
    """Either."""
    word: Literal["a", "b"] = "a"
    """A word."""
    sides: tuple[int, int] = (1, 2)
    """Two sides."""
    weights: Annotated[tuple[float, ...], Field(min_length=3, max_length=3)] = (1.0, 2.0, 3.0)
    """Three."""
    cells: list[tuple[int, int]] = Field(default_factory=list)
    """Cells."""
    network: NetworkSpec | None = None
    """Layers."""
    optimizer: OptimizerSpec = Adam()
    """How it steps."""
    other: OptimizerSpec | None = MultiStep(num_steps=5, optimizer=Adam(beta1=0.5))
    """How the other steps."""
    group: Inner = Inner(capacity=20)
    """A group with other defaults than its own."""
    activation: Activation = "relu"
    """A nonlinearity."""
    every: Frequency = Frequency(5, "t")
    """How often."""
    must: str = Field(validation_alias=AliasChoices("must", "has_to", "ought"))
    """Never left out; also spelled has_to."""
    hidden: int = Field(default=1, exclude=True)
    """Follows from others."""


ROWS = {row.name: row for row in field_rows.rows(Everything)}


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "share": "number from 0 to 1",
        "fraction": "number above 0 below 1",
        "count": "whole number from 1 or null",
        "either": "true or false or number above 0",
        "word": '"a" or "b"',
        "sides": "list of 2 whole numbers",
        "weights": "list of 3 numbers",
        "cells": "list of lists of 2 whole numbers",
        "network": "list of layers or null",
        "optimizer": "optimizer",
        "other": "optimizer or null",
        "group.capacity": "whole number from 1",
        "activation": "activation",
        "every": "frequency",
        "must": "text",
    }.items(),
)
def test_types_are_told_in_the_words_of_a_json_file(name: str, words: str) -> None:
    assert ROWS[name].plain_type == words


@pytest.mark.parametrize(
    ("name", "default"),
    {
        "count": "null",
        "sides": "[1, 2]",
        "optimizer": '"adam"',
        "other": '{"type": "multi_step", "num_steps": 5, "optimizer": {"type": "adam", "beta1": 0.5}}',
        "group.type": '"small"',
        "group.capacity": "20",
        "every": '"5t"',
        "must": REQUIRED,
    }.items(),
)
def test_defaults_are_shown_as_they_could_be_written(name: str, default: str) -> None:
    assert ROWS[name].default == default


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.default != REQUIRED and "." not in name])
def test_a_shown_default_means_the_default(name: str) -> None:
    given = Everything.model_validate({"must": "x", name: json.loads(ROWS[name].default)})
    assert given == Everything(must="x")


def test_other_spellings_are_named_once() -> None:
    assert ROWS["must"].sentence == "Never left out. Also spelled `has_to`, `ought`."


def test_what_follows_from_other_settings_is_not_shown() -> None:
    assert "hidden" not in ROWS
    assert "group" not in ROWS


def test_the_objects_that_settings_are_made_of_are_found_however_deep() -> None:
    kinds = field_rows.kinds(Everything)
    assert set(kinds) == {"layer", "optimizer"}
    assert kinds["layer"] == field_rows.members(Layer)
    assert kinds["optimizer"]["multi_step"] is MultiStep


def test_a_row_without_its_type_is_for_members_of_a_union() -> None:
    assert [row.name for row in field_rows.rows(Inner, without_type=True)] == ["capacity"]
    assert field_rows.tags(Inner) == ("small", "large")


def test_describing_is_light_to_import() -> None:
    code = "import sys, steppe.specs.describing.field_rows; print({'jax', 'numpy', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
