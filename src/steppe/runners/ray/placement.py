"""Checks whether Ray can place the workers of an experiment, since Ray would let them wait for ever."""

from __future__ import annotations

import logging
import math
from typing import Any

from steppe.errors import UserError
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.distributed import WORKERS_PER_GPU, RaySpec

log = logging.getLogger(__name__)


def check_sharing(spec: ExperimentSpec) -> None:
    """Refuses shares so small that Ray would put too many workers on a GPU; Pods are limited already."""
    share, most = spec.ray.gpus_per_worker, spec.ray.workers_per_gpu or WORKERS_PER_GPU
    together = min(spec.num_workers, math.floor(1 / share + 1e-9)) if share else 0
    if spec.platform == "kubernetes" or together <= most:
        return
    raise UserError(
        f"ray.gpus_per_worker {share:g} would put {together} workers on a GPU, and no more than {most} share one; give "
        f"each {math.floor(100 / most) / 100:g} or more, or say how many may by ray.workers_per_gpu"
    )


def check_room(ray: Any, spec: RaySpec, can_grow: bool) -> None:
    """Refuses, or warns, if a worker fits on no machine of this Ray: it would wait for ever."""
    wanted = {"CPU": spec.cpus_per_worker, "GPU": spec.gpus_per_worker}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(machine.get(name, 0.0) >= much for name, much in wanted.items()) for machine in machines):
        return
    sentence = (
        f"no machine of this Ray has {spec.cpus_per_worker:g} CPUs and {spec.gpus_per_worker:g} GPUs for a worker, as "
        "ray.cpus_per_worker and ray.gpus_per_worker say"
    )
    if not can_grow:
        raise UserError(f"{sentence}; give them less, or join a Ray cluster that has them (ray.address)")
    log.warning("%s; the run waits until one joins that has", sentence)
