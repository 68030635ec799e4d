"""A run folder and a trainer that only counts, so that the life cycle is tested without learning anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.experiments.run_folder.store import RunFolder, Store
from steppe.records import checkpoints
from steppe.runners._base import Progress, RunOutcome
from steppe.specs.experiment import ExperimentSpec


class CountingTrainer:
    """Counts to `total` in steps of 10, one checkpoint at each end; `hold` makes it wait until it is asked to end."""

    def __init__(self, total: int = 30, hold: bool = False) -> None:
        self.total, self.hold = total, hold
        self.training = threading.Event()
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self,
        spec: ExperimentSpec,
        folder: Path,
        *,
        resume: bool,
        request: Callable[[], str | None],
        on_progress: Callable[[Progress], None],
    ) -> RunOutcome:
        self.calls.append({"spec": spec, "folder": folder, "resume": resume})
        on_progress(Progress("compiling"))
        timestep = checkpoints.list_checkpoints(folder)[-1] if resume else 0
        while (asked := request()) is None and timestep < self.total:
            timestep += 10
            on_progress(Progress("training", timestep=timestep, episode=timestep // 10, mean_return=1.5, seconds=0.1))
            self.training.set()
            while self.hold and request() is None:
                time.sleep(0.002)
        checkpoints.save(folder, timestep, {"a": np.zeros(1)}, {})
        state = {"pause": "paused", "stop": "stopped", None: "completed"}[asked]
        return RunOutcome(
            state, "counted" if asked is None else f"asked to {asked}", timestep, timestep // 10, 3, 1.5, 0.1, []
        )


@pytest.fixture
def spec() -> ExperimentSpec:
    return ExperimentSpec(name="first", environment="CartPole-v1", agent="random", total_timesteps=30, seed=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "experiments")


@pytest.fixture
def folder(store: Store, spec: ExperimentSpec) -> RunFolder:
    folder = store.folder(spec.name)
    folder.create(spec)
    return folder


@pytest.fixture
def trainer() -> type[CountingTrainer]:
    return CountingTrainer


@pytest.fixture
def wait() -> Callable[[Callable[[], Any]], Any]:
    """Waits for a condition, not for a time."""

    def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)
        return value

    return until


@pytest.fixture
def in_background() -> Any:
    """Runs a function in a thread; its result or error is in the list that is returned."""
    threads = []

    def start(function: Callable[[], Any]) -> list[Any]:
        results: list[Any] = []

        def call() -> None:
            try:
                results.append(function())
            except BaseException as error:
                results.append(error)

        threads.append(threading.Thread(target=call))
        threads[-1].start()
        return results

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
