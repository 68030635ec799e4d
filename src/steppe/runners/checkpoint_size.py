"""The disk space that the checkpoints of a run will take, for a notice before it trains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from steppe.records.checkpoints import KEPT
from steppe.specs.experiment import ExperimentSpec

LARGE = 100_000_000
"""Checkpoints of fewer bytes are not mentioned."""
SHARED_OUT = ("multi-threaded", "distributed")
"""Run modes in which each worker has a part of the memory."""


def size_notices(spec: ExperimentSpec, agent: Any, folder: Path) -> list[str]:
    """Notices about the disk space of checkpoints in `folder`."""
    size = largest_size(spec, agent)
    if size < LARGE:
        return []
    # A new checkpoint is written before the oldest one is deleted.
    needed = (KEPT + 1) * size
    told = (
        f"a checkpoint takes up to {readable_size(size)}, most of it the replay memory when it is full "
        f"(agent.memory.capacity); {KEPT} are kept"
    )
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return [told]
    return [
        f"{told}. That is {readable_size(needed)} while one is written, but {folder} has only {readable_size(free)} "
        "free: make room, or give a smaller agent.memory.capacity"
    ]


def largest_size(spec: ExperimentSpec, agent: Any) -> int:
    """The largest size in bytes of the replay memory in this run; 0 if the agent has none."""
    if agent is None or agent.memory is None:
        return 0
    # Imported here, since a learner with a policy of the user's own needs no JAX.
    from steppe.runners.engines.learning import example_of

    memory = agent.memory
    workers = spec.num_workers if spec.run_mode in SHARED_OUT else 1
    full = memory.size(example_of(agent)) * workers
    room = memory.rows * memory.num_envs * workers
    total = spec.limits[1]
    return full if total is None or total >= room else full * total // room


def readable_size(size: int) -> str:
    """A number of bytes in MB or GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
