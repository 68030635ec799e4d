"""Trains one experiment in this process.

`python -m steppe.experiments.process.run FOLDER [--resume]` is a detached run.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steppe.errors import CallbackFault, EnvironmentFault, SteppeError, StorageError, UserError
from steppe.experiments.hints import CALLS
from steppe.experiments.process.callback import Callback, OnProgress
from steppe.experiments.process.owner import EndedEarly, Owner, Requests, owning
from steppe.experiments.project import let_user_modules_import
from steppe.experiments.run_folder.states import Event
from steppe.experiments.run_folder.store import RunFolder
from steppe.specs.user_code import has_traceback, traceback_of, without_debug

if TYPE_CHECKING:
    from steppe.runners import Progress, RunOutcome
    from steppe.specs.experiment import ExperimentSpec

Trainer = Callable[..., "RunOutcome"]
LOG_PROGRESS_SECONDS = 10.0
ENDS = {"pause": "paused", "stop": "stopped"}
"""Request -> the state of a run that has followed it."""

log = logging.getLogger("steppe.experiments")


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, and the signal that asked for it (Ctrl-C is 2, SIGTERM is 15), if one did."""

    outcome: RunOutcome
    signal: int | None
    is_asked_for: bool = False
    """Whether a request asked for this end too, beside any signal."""

    @property
    def exit_code(self) -> int:
        """128 + the signal, as shells expect, so that Ctrl-C ends a loop of runs too; else 0."""
        return 128 + self.signal if self.signal is not None else 0


def run(
    folder: RunFolder,
    *,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    announce: Callable[[str], None] = lambda sentence: None,
    trainer: Trainer | None = None,
    on_termination: Literal["stop", "pause"] = "stop",
) -> RunEnd:
    """Trains as the owner of the folder until the run ends, and writes its last status.

    Ctrl-C pauses, SIGTERM does `on_termination`. If `on_progress` returns False or raises StopTraining, the run stops;
    if it raises anything else, the run fails. All save a checkpoint first.
    """
    # Signals are handled before the folder is owned, or one in between would end the run without a last status.
    with (
        Requests(folder, announce, on_termination) as requests,
        owning(folder, "resume" if resume else "start") as owner,
    ):
        try:
            spec = folder.spec()
        except SteppeError as error:
            _fail(owner, str(error))
            raise
        with logging_to(folder.log, spec.debug_logging):
            log.info("%s %s", "resuming" if resume else "starting", folder.path)
            try:
                requests.may_end_at_once = True
                outcome = _train(owner, spec, requests, on_progress, resume, trainer)
                _write_down(owner, outcome)
                is_asked_for = ENDS.get(folder.asked() or "") == outcome.state
            except EndedEarly:
                _end(owner, "stop" if owner.status.before is None else "fail", "asked to end before it began to train")
                raise
            except KeyboardInterrupt:
                if owner.status.is_live:
                    event: Event = "stop" if owner.status.before is None else "fail"
                    _end(owner, event, "ended at once by a second Ctrl-C; what came after the last checkpoint is lost")
                raise
            except SteppeError as error:
                if isinstance(error, CallbackFault | EnvironmentFault | UserError) and has_traceback(error):
                    log.error("the whole traceback:\n%s", traceback_of(error))
                if folder.ways is CALLS:
                    error.args = (without_debug(str(error)),)
                _fail(owner, str(error))
                raise
            except BaseException as error:
                log.exception("an unexpected error ended the run")
                _fail(owner, f"{type(error).__name__}: {error}")
                raise
    asked = requests.signal if outcome.state in ("paused", "stopped") else None
    return RunEnd(outcome, None if asked is None else int(asked), is_asked_for)


@contextmanager
def logging_to(path: Path, debug: bool) -> Iterator[None]:
    """Writes Python's log to log.txt while the block lasts: Steppe's at INFO or DEBUG, the rest from WARNING."""
    handler = _LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, own = logging.getLogger(), logging.getLogger("steppe")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        own.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def main(arguments: list[str] | None = None) -> int:
    """The entry of a detached run, whose output goes to log.txt."""
    arguments = sys.argv[1:] if arguments is None else arguments
    folder = RunFolder(Path(arguments[0]))
    try:
        return run(folder, resume="--resume" in arguments[1:]).exit_code
    except SteppeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Its traceback is in log.txt already, where this goes too.
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


class _LogFile(logging.FileHandler):
    """Keeps a full disk from filling the terminal with tracebacks of the logging module."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drops the record."""


def _train(
    owner: Owner,
    spec: ExperimentSpec,
    requests: Requests,
    on_progress: OnProgress | None,
    resume: bool,
    trainer: Trainer | None,
) -> RunOutcome:
    let_user_modules_import(owner.folder.path)
    if trainer is None:
        from steppe import runners

        trainer = runners.run

    next_line, ends_as_moved, callback = 0.0, False, Callback(on_progress)

    def request() -> str | None:
        nonlocal ends_as_moved
        owner.check_folder()
        action = requests.latest()
        if action is None and owner.has_moved:
            ends_as_moved = True
            return "pause"
        if action is None and callback.wants_end:
            return "stop"
        if action == "pause" and owner.status.state in ("starting", "running"):
            owner.advance("ask_pause")
        return action

    def progressed(progress: Progress) -> None:
        nonlocal next_line
        requests.may_end_at_once &= progress.phase == "compiling"
        owner.note(progress)
        if progress.effective is not None:
            owner.write_effective(progress.effective)
        if owner.status.state == "starting" and progress.phase != "compiling":
            owner.advance("train")
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LOG_PROGRESS_SECONDS
            log.info("%s", _line(progress))
        callback(progress)

    outcome = trainer(spec, owner.held, resume=resume, request=request, on_progress=progressed)
    if ends_as_moved and outcome.state == "paused":
        raise StorageError(
            f"the run folder was moved to {owner.folder.path} while it trained, so the training has ended; it is saved "
            f"there up to timestep {outcome.timestep:,}; train on with: {owner.folder.ways.resume}"
        )
    callback.check()
    if outcome.state == "stopped" and callback.reason is not None:
        return dataclasses.replace(outcome, reason=callback.reason)
    return outcome


def _write_down(owner: Owner, outcome: RunOutcome) -> None:
    fields: dict[str, Any] = {
        "timestep": outcome.timestep,
        "episode": outcome.episode,
        "update": outcome.update,
        "mean_return": outcome.mean_return,
        "seconds": outcome.seconds,
        "notices": tuple(outcome.notices),
    }
    if outcome.evaluation is not None:
        fields["evaluation"] = outcome.evaluation.to_status()
    if outcome.state == "completed" and owner.status.state == "starting":
        owner.advance("train")
    if outcome.state == "paused" and owner.status.state != "pausing":
        owner.advance("ask_pause")
    events: dict[str, Event] = {"completed": "complete", "paused": "pause", "stopped": "stop"}
    _end(owner, events[outcome.state], outcome.reason, **fields)
    if not owner.is_lost:
        _write_report(owner.folder)


def _fail(owner: Owner, reason: str) -> None:
    """Writes the end of a failed run, and its report."""
    _end(owner, "fail", reason)
    if owner.status.state == "failed" and not owner.is_lost:
        _write_report(owner.folder)


def _end(owner: Owner, event: Event, reason: str, **fields: Any) -> None:
    """Writes the last status; a disk error does not hide the first error."""
    log.log(logging.ERROR if event == "fail" else logging.INFO, "%s: %s", event, reason)
    try:
        owner.end(event, reason, **fields)
    except SteppeError as error:
        log.warning("the last state could not be written: %s", error)
        if event == "complete":
            raise


def _write_report(folder: RunFolder) -> None:
    """Writes the report, which shows the last state; an error in it does not fail the run."""
    from steppe.records.report import write_report

    try:
        write_report(folder.path)
    except SteppeError as error:
        log.warning("report.html could not be written: %s", error)
    except Exception:
        log.exception("report.html could not be written")


def _line(progress: Progress) -> str:
    score = "no episode yet" if progress.mean_return is None else f"mean return {progress.mean_return:.2f}"
    return f"{progress.phase}: timestep {progress.timestep}, episode {progress.episode}, {score}"


if __name__ == "__main__":
    sys.exit(main())
