"""Trains experiments. Importing this is light; JAX is imported with the first check or run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steppe.files.held_folder import HeldFolder
from steppe.runners._base import Progress, RunOutcome
from steppe.specs.experiment import ExperimentSpec

__all__ = ["Progress", "RunOutcome", "check", "release", "run"]

log = logging.getLogger(__name__)


def check(spec: ExperimentSpec, resumed: Path | None = None) -> list[str]:
    """Builds everything that the experiment needs; returns notices of settings without effect.

    The engine is kept for a run of the same experiment in this process; `release` closes it. `resumed` is the folder of
    the run that will continue. Raises a UserError for whatever cannot work: unknown agents and settings, networks that
    do not fit the observations, actions that the algorithm cannot take.
    """
    from steppe.records.checkpoints import latest_manifest
    from steppe.runners import kept_engine
    from steppe.runners.setup import checked_engine, notices_for

    release()
    spreading = _kept_spreading({} if resumed is None else latest_manifest(resumed))
    engine, notices = checked_engine(spec, *spreading)
    kept_engine.keep(spec, spreading, engine)
    return notices_for(spec) + notices


def release() -> None:
    """Closes the engine that the last check has built; for a process that does not train the experiment itself."""
    if (kept := sys.modules.get("steppe.runners.kept_engine")) is not None:
        kept.release()


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
    from steppe.runners import kept_engine
    from steppe.runners.artifacts import is_filmed, leave_video_and_onnx
    from steppe.runners.loop import TrainingLoop
    from steppe.runners.play.final_evaluation import evaluate_at_end, is_evaluated
    from steppe.runners.setup import make_engine

    checkpoint = load_latest(folder) if resume else None
    manifest: dict[str, Any] = {} if checkpoint is None else checkpoint.manifest
    spreading = _kept_spreading(manifest)
    spec, engine = kept_engine.take(spec, spreading) or (spec, make_engine(spec, *spreading))
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
