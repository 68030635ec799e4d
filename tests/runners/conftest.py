from __future__ import annotations

import pytest

from steppe.runners.compilation import prepare_jax


@pytest.fixture(scope="session", autouse=True)
def _jax_as_in_training() -> None:
    prepare_jax()
