"""One Ray for each test file that needs it, since its start takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from steppe.runners.ray.ray_session import ray_session
from steppe.specs.running.distributed import RaySpec


@pytest.fixture(scope="module")
def a_ray() -> Iterator[None]:
    """A Ray that reports one GPU, whether the machine has one or not."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", partial(ray.init, num_gpus=1))
        with ray_session(RaySpec(object_store=0.15), cpus=5):
            yield
