from __future__ import annotations

import pytest
from runs import experiment

from steppe.runners.compilation import prepare_jax
from steppe.runners.setup import make_engine


@pytest.fixture(scope="session", autouse=True)
def _jax_as_in_training() -> None:
    prepare_jax()


@pytest.fixture
def engine_for():
    """Makes engines that have begun, and closes them all."""
    engines = []

    def make(environment, agent, **fields):
        engine = make_engine(experiment(environment, agent, **{"total_timesteps": 100_000, **fields}))
        engines.append(engine)
        engine.begin(1)
        return engine

    yield make
    for engine in engines:
        engine.close()
