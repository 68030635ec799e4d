"""Fixtures for tests on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube_testbed import Testbed, running_testbed


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """A cluster with at least one node; `testbed.with_nodes(2)` gives more."""
    with running_testbed() as cluster:
        yield cluster


@pytest.fixture
def namespace(testbed: Testbed) -> Iterator[str]:
    """A namespace that is deleted after the test."""
    name = testbed.new_namespace()
    yield name
    testbed.kubectl("delete", "namespace", name, "--wait=false")
