"""How much disk the checkpoints of a run will take: told before it trains, if it is much."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from steppe.records.checkpoints import KEPT
from steppe.specs.experiment import ExperimentSpec

LARGE = 100_000_000
"""From how many bytes on a checkpoint is worth a word."""
SHARED_OUT = ("multi-threaded", "distributed")
"""Run modes in which each worker has its part of the memory."""


def sentences(spec: ExperimentSpec, agent: Any, folder: Path) -> list[str]:
    """What a user should know of the room that checkpoints in `folder` will take."""
    size = largest(spec, agent)
    if size < LARGE:
        return []
    # One more is written before the oldest is deleted.
    needed = (KEPT + 1) * size
    told = (
        f"a checkpoint takes up to {written(size)}, most of it the replay memory when it is full "
        f"(agent.memory.capacity); {KEPT} are kept"
    )
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return [told]
    return [
        f"{told}. That is {written(needed)} while one is written, but {folder} has only {written(free)} free: make "
        "room, or give a smaller agent.memory.capacity"
    ]


def largest(spec: ExperimentSpec, agent: Any) -> int:
    """The bytes of a replay memory as full as it gets in this run; 0 if the agent has none."""
    if agent.memory is None:
        return 0
    # Here, since a learner with a policy of the user's own needs no JAX.
    from steppe.runners.engines.learning import example_of

    memory = agent.memory
    workers = spec.num_workers if spec.run_mode in SHARED_OUT else 1
    full = memory.size(example_of(agent)) * workers
    room = memory.rows * memory.num_envs * workers
    total = spec.limits[1]
    return full if total is None or total >= room else full * total // room


def written(size: int) -> str:
    """A number of bytes as people write it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
