from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from object_storage import KINDS, Cloud, cloud_of

from steppe.files.bundles import Packed, pack
from steppe.platforms.kubernetes.manifests.rendering import PIECE, ManifestPlan
from steppe.spec_files import load_experiment
from steppe.specs.running.cluster import ClusterSpec

Planned = Callable[..., ManifestPlan]
CloudOf = Callable[[str], Cloud]


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudOf]:
    """Starts object storage of a kind, each kind once."""
    clouds: dict[str, Cloud] = {}
    with contextlib.ExitStack() as stack:

        def start(kind: str) -> Cloud:
            if kind not in clouds:
                clouds[kind] = stack.enter_context(cloud_of(kind, tmp_path_factory.mktemp(kind)))
            return clouds[kind]

        yield start


@pytest.fixture
def signed_in(started: CloudOf, monkeypatch: pytest.MonkeyPatch) -> CloudOf:
    """Starts object storage of a kind, and sets the variables with its address and credentials in this process."""

    def sign_in(kind: str) -> Cloud:
        cloud = started(kind)
        for name, value in cloud.variables().items():
            monkeypatch.setenv(name, value)
        if cloud.google is not None:
            cloud.google.calm()
        return cloud

    return sign_in


@pytest.fixture(params=KINDS)
def cloud(request: pytest.FixtureRequest, signed_in: CloudOf) -> Cloud:
    """Object storage on a real server."""
    return signed_in(request.param)


@pytest.fixture
def remote(cloud: Cloud) -> str:
    """The URL of an unused place in it."""
    return cloud.place()


@pytest.fixture(params=["memory", *KINDS])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of an unused place in each kind of storage."""
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{uuid4().hex}/run"
    return request.getfixturevalue("signed_in")(request.param).place()


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Makes a plan from fields of the experiment, and of the cluster if `cluster` is given."""

    def plan(
        cluster: dict[str, Any] | None = None,
        modules: dict[str, str | bytes] | None = None,
        files: Sequence[Packed] = (),
        **fields: Any,
    ) -> ManifestPlan:
        given = {"name": "first", "environment": "CartPole-v1", "platform": "kubernetes"} | fields
        spec = load_experiment(None, given, [], tmp_path, options=False)
        return ManifestPlan(
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
    """Packs a file of that name and content as one that goes along."""

    def ready(name: str, content: bytes) -> Packed:
        (tmp_path / "content").write_bytes(content)
        made = pack(tmp_path / "content", name, PIECE, most=10**8)
        assert made is not None
        return made

    return ready
