"""One Ray for each file of tests that needs one: starting it takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from steppe.runners.ray_session import ray_session
from steppe.specs.distributed import RaySpec


@pytest.fixture(scope="module")
def a_ray() -> Iterator[None]:
    with ray_session(RaySpec(object_store=0.15), cpus=5):
        yield
