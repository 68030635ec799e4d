"""Sentences under fields, held against pydantic's own reading of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from steppe.specs._base import Spec
from steppe.specs.describing.docstrings import DescribedSchema, sentence_of


class Eager(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    plain: int = 1
    """One line."""
    long: int = 1
    """Two lines,
    of which this is the second."""
    silent: int = 1
    told: Annotated[int, Field(description="By the field itself.")] = 1
    """Not this."""
    other: int = Field(1, validation_alias=AliasChoices("other", "another"))
    """Has another name."""


class EagerChild(Eager):
    plain: int = 2
    """One line of its own."""
    long: int = 2


class Lazy(Spec):
    plain: int = 1
    """One line."""
    long: int = 1
    """Two lines,
    of which this is the second."""
    silent: int = 1
    told: Annotated[int, Field(description="By the field itself.")] = 1
    """Not this."""
    other: int = Field(1, validation_alias=AliasChoices("other", "another"))
    """Has another name."""


class LazyChild(Lazy):
    plain: int = 2
    """One line of its own."""
    long: int = 2


def test_sentences_are_those_that_pydantic_reads() -> None:
    for lazy, eager in ((Lazy, Eager), (LazyChild, EagerChild)):
        for name, field in eager.model_fields.items():
            assert sentence_of(lazy, name) == (field.description or ""), name


def test_a_schema_describes_every_field_as_pydantic_does() -> None:
    for lazy, eager in ((Lazy, Eager), (LazyChild, EagerChild)):
        assert lazy.model_fields["plain"].description is None
        described = lazy.model_json_schema(schema_generator=DescribedSchema)["properties"]
        assert described == eager.model_json_schema()["properties"]


def test_classes_inside_functions_and_classes_are_found() -> None:
    class Plain(Spec):
        size: int = 1
        """Inside a function."""

    assert sentence_of(Plain, "size") == "Inside a function."
    assert sentence_of(Outer.Plain, "size") == "Inside a class."


class Outer:
    class Plain(Spec):
        size: int = 1
        """Inside a class."""


def test_without_its_source_a_field_has_no_sentence(monkeypatch) -> None:
    monkeypatch.setattr(Lazy, "__module__", "no_such_module")
    assert sentence_of(Lazy, "plain") == ""


def test_importing_specs_and_agents_reads_no_source() -> None:
    code = (
        "import jax, inspect\n"
        "def refuse(*_): raise AssertionError('source was read')\n"
        "inspect.findsource = inspect.getsource = refuse\n"
        "import steppe.specs.experiment, steppe.specs.running.connections\n"
        "from steppe import agents\n"
        "agents.settings_class('ppo').model_validate({}), agents.settings_class('sac').model_validate({})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
