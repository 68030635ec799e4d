from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from steppe.platforms.kubernetes.rendering import PIECE, Plan
from steppe.records.carried import Packed, pack
from steppe.specs.cluster import ClusterSpec
from steppe.specs.experiment import load_experiment

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """A plan with other fields of the experiment, and of the cluster where `cluster` is given."""

    def plan(
        cluster: dict[str, Any] | None = None,
        modules: dict[str, str | bytes] | None = None,
        files: Sequence[Packed] = (),
        **fields: Any,
    ) -> Plan:
        given = {"name": "first", "environment": "CartPole-v1", "platform": "kubernetes"} | fields
        spec = load_experiment(None, given, [], tmp_path, options=False)
        return Plan(
            spec,
            "project",
            "space",
            cluster=None if cluster is None else ClusterSpec.model_validate(cluster),
            modules=modules or {},
            files=files,
        )

    return plan


@pytest.fixture
def packed(tmp_path: Path) -> Callable[[str, bytes], Packed]:
    """A file of that name and content, ready to go along."""

    def ready(name: str, content: bytes) -> Packed:
        (tmp_path / "content").write_bytes(content)
        made = pack(tmp_path / "content", name, PIECE, most=10**8)
        assert made is not None
        return made

    return ready
