"""Trains experiments. Importing this is light; JAX is imported with the first check or run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from steppe.files.held_folder import HeldFolder
from steppe.runners._base import Progress, RunOutcome
from steppe.specs.experiment import ExperimentSpec

__all__ = ["Outcome", "Progress", "check", "run"]

log = logging.getLogger(__name__)


def check(spec: ExperimentSpec, resumed: Path | None = None) -> list[str]:
    """Builds everything that the experiment needs and discards it; returns notices of settings without effect.

    `resumed` is the folder of a run to be resumed, perhaps in this process, where JAX can only be set up once.

    Raises a UserError for everything that cannot work: unknown agents and settings, networks that do not fit the
    observations, actions that the algorithm cannot take.
    """
    from steppe.records.checkpoints import latest_manifest
    from steppe.runners.compilation import keep_off_gpus, let_threads_compute
    from steppe.runners.setup import PARALLEL, check_object, make_engine, notices_for, xla_threads_of

    manifest = {} if resumed is None else latest_manifest(resumed)
    check_object(spec)
    if spec.run_mode == "multi-threaded":
        # JAX is set up once in a process, and the run may be in this one.
        let_threads_compute(spec.num_workers)
    elif spec.run_mode == "distributed" and spec.ray.gpus_per_worker:
        keep_off_gpus()
    # The other run modes are built from the same agents and environments.
    shards: int | None = 1
    xla_threads: int | None = 1
    if spec.run_mode == "single":
        shards, xla_threads = _kept_spreading(manifest)
    elif spec.run_mode == "async":
        xla_threads = xla_threads_of(spec)
    make_engine(spec.model_copy(update={"run_mode": "single"}), shards, xla_threads).close()
    notices = notices_for(spec)
    if spec.run_mode != "single":
        notices += import_module(PARALLEL[spec.run_mode]).check(spec)
    return notices


def run(
    spec: ExperimentSpec,
    folder: Path | HeldFolder,
    *,
    resume: bool,
    request: Callable[[], str | None],
    on_progress: Callable[[Progress], None],
) -> RunOutcome:
    """Trains in this process and writes metrics, checkpoints, policies and a video to `folder`.

    `request` is called between chunks of about a fifth of a second; it may return "pause" or "stop".
    """
    from dataclasses import replace

    from steppe.records.checkpoints import load_latest
    from steppe.runners.artifacts import is_filmed, leave_video_and_onnx
    from steppe.runners.loop import TrainingLoop
    from steppe.runners.play.final_evaluation import evaluate_at_end, is_evaluated
    from steppe.runners.setup import make_engine

    checkpoint = load_latest(folder) if resume else None
    manifest: dict[str, Any] = {} if checkpoint is None else checkpoint.manifest
    engine = make_engine(spec, *_kept_spreading(manifest))
    try:
        loop = TrainingLoop(spec, engine, folder, request, on_progress)
        outcome = loop.run(checkpoint)
    finally:
        engine.close()
    if is_evaluated(spec, outcome.state):
        loop.show_phase("evaluating")
        outcome = replace(outcome, evaluation=evaluate_at_end(spec, Path(folder), outcome, request))
    loop.show_phase("filming" if is_filmed(spec, outcome.state) else "exporting")
    outcome.notices.extend(leave_video_and_onnx(spec, Path(folder), outcome.state))
    return outcome


def _kept_spreading(manifest: dict[str, Any]) -> tuple[int | None, int | None]:
    """(host devices, XLA threads) of a checkpoint; None lets them be chosen for this machine.

    Checkpoints without a number of threads were made by versions that used one.
    """
    return manifest.get("shards"), manifest.get("xla_threads", 1 if manifest else None)
