"""docs/kubernetes.md shows the role that Steppe needs, and its examples are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from steppe.platforms.kubernetes.manifests import permissions
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_role_that_steppe_needs() -> None:
    (role,) = blocks("yaml")
    assert yaml.safe_load(role) == permissions.role("research")


EXAMPLES = [json.loads(text) for text in blocks("json")]
CLUSTERS = [example for example in EXAMPLES if "provider" in example]


@pytest.mark.parametrize("example", CLUSTERS, ids=lambda example: example["provider"])
def test_cluster_examples_are_valid(example: dict[str, Any]) -> None:
    assert ClusterSpec.model_validate(example).model_fields_set == set(example)


@pytest.mark.parametrize(
    "example", [example for example in EXAMPLES if example not in CLUSTERS], ids=lambda example: str(list(example))
)
def test_experiment_examples_are_valid(example: dict[str, Any]) -> None:
    spec = ExperimentSpec.model_validate({"name": "x", "agent": "sac", "environment": "Pendulum-v1", **example})
    assert spec.kubernetes.model_fields_set == set(example["kubernetes"])


def test_the_page_explains_every_field_of_the_kubernetes_block() -> None:
    table = PAGE.partition("## The `kubernetes` block")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE))))
    assert named == set(type(ExperimentSpec.model_fields["kubernetes"].default).model_fields)
