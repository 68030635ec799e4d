"""A real Kubernetes, a namespace for each test, and an image of this source; see tests/support/kube_testbed.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import PODS, Workplace, end_watchers, mounted_source
from kube_fixtures import namespace, testbed
from kube_testbed import Testbed, built_image

__all__ = ["namespace", "testbed"]

HERE = Path(__file__).parent
MINUTES = float(os.environ.get("STEPPE_TEST_MINUTES") or "inf")
"""How many minutes after the start of the session a test on the cluster may still begin: 30 in `.ci/run`."""
BEGUN = time.monotonic()
FIRST = ("test_runs.py", "test_faults.py")
"""The modules that run first, since tests are skipped once the time is over."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that use the cluster as `kubernetes`, so that `-m "not kubernetes"` starts no cluster."""
    items.sort(key=_turn)
    for item in items:
        if HERE in item.path.parents and "testbed" in getattr(item, "fixturenames", ()):
            item.add_marker("kubernetes")
            # The first of them waits for the image, whose packages are some hundred megabytes to download.
            item.add_marker(pytest.mark.timeout(1500), append=False)


def _turn(item: pytest.Item) -> int:
    is_first = item.path.parent == HERE and item.path.name in FIRST
    return FIRST.index(item.path.name) if is_first else len(FIRST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that begin after the time is over."""
    if item.get_closest_marker("kubernetes") and time.monotonic() - BEGUN > 60 * MINUTES:
        pytest.skip(f"the {MINUTES:g} minutes of STEPPE_TEST_MINUTES are over; make test-kubernetes runs all of them")


@pytest.fixture
def kubeconfig(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster's kubeconfig, which KUBECONFIG names during the test."""
    monkeypatch.setenv("KUBECONFIG", str(testbed.kubeconfig))
    return testbed.kubeconfig


@pytest.fixture(scope="session")
def image(testbed: Testbed) -> str:
    """An image built from the project's Dockerfile, which every node has."""
    return built_image(testbed)


@pytest.fixture(scope="session")
def pods(testbed: Testbed, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Pod settings with this source: from the image, or mounted from this machine if STEPPE_TEST_MOUNT=1."""
    if os.environ.get("STEPPE_TEST_MOUNT"):
        testbed.kube("base")
        return PODS | mounted_source()
    return PODS | {"image": request.getfixturevalue("image")}


@pytest.fixture
def workplace(testbed: Testbed, namespace: str, pods: dict[str, Any], tmp_path: Path) -> Iterator[Workplace]:
    """A project whose cluster "testbed" has a namespace of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Workplace(folder, testbed, namespace, pods)
    made.steppe("init", "-n", "tests")
    made.register()
    yield made
    end_watchers(folder)
