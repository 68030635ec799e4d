from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steppe.platforms.kubernetes.rendering import Plan
from steppe.specs.cluster import ClusterSpec
from steppe.specs.experiment import load_experiment

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """A plan with other fields of the experiment, and of the cluster where `cluster` is given."""

    def plan(cluster: dict[str, Any] | None = None, modules: dict[str, str] | None = None, **fields: Any) -> Plan:
        given = {"name": "first", "environment": "CartPole-v1", "platform": "kubernetes"} | fields
        spec = load_experiment(None, given, [], tmp_path, options=False)
        return Plan(
            spec,
            "project",
            "space",
            cluster=None if cluster is None else ClusterSpec.model_validate(cluster),
            modules=modules or {},
        )

    return plan
