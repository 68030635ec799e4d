"""docs/fields.md agrees with the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from steppe import agents
from steppe.specs.experiment import ExperimentSpec

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_fields", DOCS / "generate_fields.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_fields_page_is_up_to_date(generator: Any) -> None:
    written = (DOCS / "fields.md").read_text(encoding="utf-8")
    assert written == generator.page(), "run: python docs/generate_fields.py"


def test_the_fields_page_names_every_field_of_an_experiment_and_of_every_agent() -> None:
    written = (DOCS / "fields.md").read_text(encoding="utf-8")
    names = set(ExperimentSpec.model_fields)
    for agent in agents.names():
        names |= set(agents.settings_class(agent).model_fields)
    missing = {name for name in names if f"| `{name}` |" not in written and f"| `{name}." not in written}
    assert missing == set()
