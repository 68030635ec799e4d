"""Trains one experiment in a Pod: starts it, or resumes the run of an earlier Pod.

    python -m steppe.experiments.process.pod_run FOLDER --spec FILE --generation G --start S

A Pod may be replaced at any moment. SIGTERM saves a checkpoint and ends with 143, and the next Pod resumes. A final end
(completed, paused or stopped as asked, failed) is written down with the number of its start, so that another Pod of the
same start does not resume. Two Pods may exist at once, as while a node is drained: the second waits, and writes nothing
while the first lives. Exit codes: 0 the run is over, 3 it has failed for good, 75 another Pod still has it and this one
has not begun, else the next Pod resumes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from steppe.errors import OwnedError, SteppeError, UserError
from steppe.experiments.process.owner import EndedEarly
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import SILENT_SECONDS, RunFolder, Status
from steppe.files.durable import write_atomically
from steppe.platforms.kubernetes.agreement import ELSEWHERE, FAILED_FOR_GOOD, NOTE_FILE

OVER = 0
MOST_DEATHS = 3
"""How often a training may die without a newer checkpoint."""
FORGOTTEN_SECONDS = 600.0
"""An owner whose heartbeat is older than this is not waited for."""
MOST_WAITING = 3.0
"""The longest wait for another owner, in multiples of SILENT_SECONDS."""
LOOK_SECONDS = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Trains until the run ends or this Pod must; returns the exit code."""
    parser = argparse.ArgumentParser(prog="steppe.experiments.process.pod_run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--generation", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--failed", metavar="REASON", help="note that the training has failed, and why")
    asked = parser.parse_args(arguments)
    folder = RunFolder(asked.folder)
    try:
        return _go_on(folder, asked)
    except OwnedError as error:
        # Nothing is written: the status belongs to the owner.
        print(f"error: {error}", file=sys.stderr)
        return ELSEWHERE


def _go_on(folder: RunFolder, asked: argparse.Namespace) -> int:
    # Only here: a folder that is deleted while it trains must not be made again.
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        _wait_until_free(folder)
        # Read only now: an earlier Pod of the same start may have ended the run meanwhile.
        note = _read_note(folder)
        if note.get("start") == asked.start and "exit_code" in note:
            print(f"this start of the experiment is over already: it is {folder.read_status().state}", flush=True)
            return int(note["exit_code"])
        if asked.failed is not None:
            raise UserError(asked.failed)
        _bring_up_to_date(folder, asked.spec, asked.generation, note)
        _check_deaths(folder, asked.start, note)
        _write_note(folder, generation=asked.generation, start=asked.start, **_deaths(folder, asked.start, note))
        exit_code = _train(folder)
    except OwnedError:
        raise
    except UserError as error:
        exit_code = _fail(folder, str(error))
    except SteppeError as error:
        print(f"error: {error}", file=sys.stderr)
        exit_code = FAILED_FOR_GOOD
    if exit_code in (OVER, FAILED_FOR_GOOD):
        _write_note(folder, generation=asked.generation, start=asked.start, exit_code=exit_code)
    return exit_code


def _train(folder: RunFolder) -> int:
    from steppe.experiments.locations.local import has_checkpoint
    from steppe.runners.simulators import wait_for_simulator

    status = folder.local_status()
    resume = status.state != "created" and has_checkpoint(folder)
    if not resume and status.state != "created":
        # It ended before its first checkpoint.
        with folder.lock("renew") as status:
            folder.set_aside(status)
            folder.write_status(Status(created=status.created or time.time()))
    wait_for_simulator(folder.spec().environment)
    try:
        ended = run(folder, resume=resume, on_termination="pause")
    except EndedEarly:
        return 128 + signal.SIGTERM
    except SteppeError:
        raise
    except Exception as error:
        # Its traceback is in log.txt already.
        raise SteppeError(f"{type(error).__name__}: {error}") from error
    # A run that ended as requested is over, even if this Pod got a signal at the same time.
    return ended.exit_code if ended.signal is not None and not ended.is_asked_for else OVER


def _wait_until_free(folder: RunFolder) -> None:
    """Waits for an earlier Pod that still trains, or writes its report; OwnedError if it does not end.

    A Pod that vanished with its node counts as running until its status has not changed for SILENT_SECONDS, measured
    by this Pod's clock, since those of nodes may differ.
    """
    begun = since = time.monotonic()
    heard: Status | None = None
    while folder.exists:
        now, status = time.monotonic(), folder.read_status()
        if status != heard:
            heard, since = status, now
        is_silent = now - since > SILENT_SECONDS or _is_forgotten(status)
        if folder.is_left(heard if is_silent else None):
            return
        if now - begun > MOST_WAITING * SILENT_SECONDS:
            raise OwnedError(
                f"another Pod ({status.host}) still has this experiment, and only one may write the results; this one "
                "ends, and another tries again"
            )
        time.sleep(LOOK_SECONDS)


def _is_forgotten(status: Status) -> bool:
    """Whether the heartbeat is too old to be explained by wrong clocks."""
    return abs(time.time() - (status.heartbeat or 0.0)) > FORGOTTEN_SECONDS


def _bring_up_to_date(folder: RunFolder, file: Path, generation: str, note: dict[str, Any]) -> None:
    """Writes the spec as the client has it now; a new generation starts anew."""
    from steppe.spec_files import read_experiment
    from steppe.specs.loading.files import read_spec_file

    spec = read_experiment(read_spec_file(file), str(file))
    if not folder.exists:
        folder.create(spec)
        return
    with folder.lock("renew") as status:
        if note.get("generation", generation) != generation:
            folder.set_aside(status)
            folder.write_status(Status(created=time.time()))
        folder.write_spec(spec)


def _check_deaths(folder: RunFolder, start: str, note: dict[str, Any]) -> None:
    deaths = _deaths(folder, start, note)["deaths"]
    if deaths > MOST_DEATHS:
        raise UserError(
            f"its Pods have ended {deaths} times without a word and without a new checkpoint, as they do when they run "
            "out of memory (kubernetes.driver.memory) or lose their nodes; a smaller saver_frequency loses less"
        )


def _deaths(folder: RunFolder, start: str, note: dict[str, Any]) -> dict[str, Any]:
    """How often this start has died since the newest checkpoint."""
    from steppe.records.checkpoints import list_checkpoints

    newest = (list_checkpoints(folder.path) or [0])[-1]
    is_same = note.get("start") == start and note.get("checkpoint") == newest
    return {"checkpoint": newest, "deaths": note.get("deaths", 0) + 1 if is_same else 0}


def _fail(folder: RunFolder, reason: str) -> int:
    """Writes down a failure that came before the training, or outside of it."""
    print(f"error: {reason}", file=sys.stderr)
    if folder.exists and folder.read_status().reason != reason:
        import dataclasses

        with folder.lock("renew") as status:
            failed = dataclasses.replace(status, state="failed", reason=reason, finished=time.time(), phase="")
            folder.write_status(failed)
    return FAILED_FOR_GOOD


def _read_note(folder: RunFolder) -> dict[str, Any]:
    try:
        note = json.loads((folder.path / NOTE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(folder: RunFolder, **note: Any) -> None:
    write_atomically(folder.path / NOTE_FILE, json.dumps(note) + "\n")


if __name__ == "__main__":
    sys.exit(main())
