"""Endpoints shared by all tests that only ask them."""

from __future__ import annotations

import pytest
from served import one_policy, router, serving


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A policy called "pole"."""
    folder = tmp_path_factory.mktemp("one")
    with serving(one_policy(folder), folder) as served:
        yield served


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A router called "pole" over "a" and "b"."""
    folder = tmp_path_factory.mktemp("two")
    with serving(router(folder), folder) as served:
        yield served
