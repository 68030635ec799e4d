"""docs/serving.md has valid graphs and names every field of a graph."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from steppe.specs.serving import AbTestSpec, GraphSpec, ModelSpec, RouterSpec, ShadowSpec, load_graph

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)]
GRAPHS = [block for block in BLOCKS if "kind" in block]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph["kind"])
def test_graphs_are_valid(graph: dict[str, Any]) -> None:
    assert GraphSpec.model_validate(graph).root.kind == graph["kind"]


def test_the_seldon_deployment_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "deployment.yaml").write_text(text)
    spec, _ = load_graph("deployment.yaml", tmp_path)
    assert (spec.name, spec.root.kind, spec.notices) == ("cartpole", "router", ())


def test_the_page_has_a_graph_of_every_kind() -> None:
    assert {graph["kind"] for graph in GRAPHS} == {"model", "abtest", "router", "shadow"}


def test_the_page_names_every_field_of_a_graph() -> None:
    fields = {name for spec in (ModelSpec, AbTestSpec, RouterSpec, ShadowSpec) for name in spec.model_fields}
    assert {name for name in fields - {"kind"} if f"`{name}`" not in PAGE} == set()


def test_metrics_on_the_page_exist() -> None:
    file = Path(__file__).parents[2] / "src" / "steppe" / "serve" / "http" / "request_metrics.py"
    source = file.read_text(encoding="utf-8")
    named = set(re.findall(r"`(steppe_serve_\w+)`", PAGE))
    assert named
    short = {name: name.removeprefix("steppe_serve_").removesuffix("_total") for name in named}
    assert {name for name in named if f'"{name}"' not in source and f'"{short[name]}"' not in source} == set()
