"""The evaluation at the end of a run: the last and the best policy play the same episodes; the better one is kept."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from steppe.errors import SteppeError
from steppe.files.durable import storing
from steppe.files.held_folder import HeldFolder
from steppe.policies.policy import Policy, load_policy
from steppe.policies.policy_folder import TENSORS_FILE
from steppe.records.evaluation import FILE, Evaluation, FinalEvaluation
from steppe.runners._base import RunOutcome
from steppe.specs.allowed_modules import named_by
from steppe.specs.experiment import ExperimentSpec, FinalEvaluationSpec

SHARE_OF_TRAINING = 0.1
LEAST_SECONDS, MOST_SECONDS = 20.0, 60.0
PATIENCE_SECONDS = 60.0
"""How much longer than planned an evaluation may take before its environment counts as hanging."""
WORKERS_PLAY = ("async", "distributed")
"""Run modes whose environments are in other processes, so that a hanging one need not keep the run from ending."""
ONE_PLAYER = "ue4"
"""The id of environments that serve one learner at a time, which may still be connected."""

log = logging.getLogger(__name__)


class _EndRequested(SteppeError):
    """The run was asked to end."""


def is_evaluated(spec: ExperimentSpec, state: str) -> bool:
    """Whether a run that ends in this state evaluates its policies."""
    return spec.final_evaluation is not None and state == "completed"


def evaluate_at_end(
    spec: ExperimentSpec, folder: Path, outcome: RunOutcome, request: Callable[[], str | None]
) -> FinalEvaluation | None:
    """Plays with both policies, puts the better one into policy/ and writes evaluation.json.

    Returns None, with a notice, if they cannot be evaluated here; the run does not fail. A request to end the run ends
    the evaluation too.
    """
    options = spec.final_evaluation
    assert options is not None
    notices = outcome.notices
    try:
        last, best = _policies(spec, folder)
        seconds = _seconds(options, outcome)

        def evaluated() -> FinalEvaluation:
            return _evaluated(spec, options, last, best, seconds, request, notices)

        found = _unless_it_hangs(evaluated, seconds) if spec.run_mode in WORKERS_PLAY else evaluated()
        _hand_out(folder, found.handed_out, last, best)
        found.write(folder)
    except SteppeError as error:
        notices.append(f"no evaluation at the end: {error}")
    except Exception as error:
        log.exception("no evaluation at the end")
        notices.append(f"no evaluation at the end: {type(error).__name__}: {error}")
    else:
        log.info("evaluation at the end: %s", found.to_status())
        return found
    log.warning(notices[-1])
    return None


def remove_evaluation(folder: Path | HeldFolder) -> None:
    """Removes the results of an earlier evaluation: a resumed run saves other policies."""
    last = folder / "policy" / "last"
    with storing(last):
        if last.is_dir():
            shutil.rmtree(last)
        (folder / FILE).unlink(missing_ok=True)


def _policies(spec: ExperimentSpec, folder: Path) -> tuple[Policy, Policy | None]:
    """(the last policy, the best one if that is a different one)."""
    place, allowed = folder / "policy", named_by(spec)
    kept = place / "last"
    last = load_policy(kept if (kept / TENSORS_FILE).is_file() else place, allow_modules=allowed)
    if not (place / "best" / TENSORS_FILE).is_file():
        return last, None
    best = load_policy(place / "best", allow_modules=allowed)
    names = last.tensors.keys()
    is_same = best.tensors.keys() == names and all(np.array_equal(best.tensors[n], last.tensors[n]) for n in names)
    return last, None if is_same else best


def _evaluated(
    spec: ExperimentSpec,
    options: FinalEvaluationSpec,
    last: Policy,
    best: Policy | None,
    seconds: float,
    request: Callable[[], str | None],
    notices: list[str],
) -> FinalEvaluation:
    from steppe.runners.play.evaluation import (  # with gymnasium, which the start of a run can do without
        TimeLimit,
        evaluate,
    )

    if spec.environment.id == ONE_PLAYER:
        raise SteppeError("a game plays with one learner at a time")

    def look() -> None:
        if requested := request():
            raise _EndRequested(f"the run was asked to {requested} meanwhile")

    def played(policy: Policy, episodes: int) -> Evaluation:
        # A single environment, so that some episodes are complete when the time is over.
        limit = TimeLimit(seconds / (1 if best is None else 2), look)
        seed, greedy = spec.seed or 0, options.greedy
        return evaluate(policy, spec, episodes=episodes, seed=seed, greedy=greedy, num_envs=1, time_limit=limit)

    of_last = played(last, options.episodes)
    if of_last.episodes < options.episodes:
        notices.append(
            f"the evaluation at the end played {of_last.episodes} of {options.episodes} episodes, all that there was "
            "time for; more have it by final_evaluation.seconds, or later by steppe evaluate"
        )
    if best is None:
        return FinalEvaluation(of_last, None, "last")
    try:
        of_best = played(best, of_last.episodes)
    except _EndRequested:
        raise
    except SteppeError as error:
        notices.append(f"the best policy was not evaluated at the end: {error}")
        return FinalEvaluation(of_last, None, "last")
    is_better = of_best.episodes == of_last.episodes and of_best.mean > of_last.mean
    return FinalEvaluation(of_last, of_best, "best" if is_better and options.hand_out == "better" else "last")


def _unless_it_hangs(evaluated: Callable[[], FinalEvaluation], seconds: float) -> FinalEvaluation:
    """Returns or raises what `evaluated` does; raises an error if that takes far longer than `seconds`."""
    answers: queue.SimpleQueue[FinalEvaluation | BaseException] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put(evaluated())
        except BaseException as error:
            answers.put(error)

    # Nothing can end a thread that hangs; as a daemon it does not outlive the process.
    threading.Thread(target=answer, name="steppe-final-evaluation", daemon=True).start()
    try:
        found = answers.get(timeout=seconds + PATIENCE_SECONDS)
    except queue.Empty:
        raise SteppeError(f"the environment did not answer within {seconds + PATIENCE_SECONDS:.0f} s") from None
    if isinstance(found, BaseException):
        raise found
    return found


def _hand_out(folder: Path, which: str, last: Policy, best: Policy | None) -> None:
    """Puts the chosen policy into policy/, and keeps the last one beside it if it is another one."""
    place = folder / "policy"
    if which == "best" and best is not None:
        # The last policy first, so that it is never lost.
        last.save(place / "last")
        best.save(place)
    elif (place / "last").is_dir():
        last.save(place)
        remove_evaluation(folder)


def _seconds(options: FinalEvaluationSpec, outcome: RunOutcome) -> float:
    if options.seconds is not None:
        return options.seconds
    return float(np.clip(SHARE_OF_TRAINING * outcome.seconds, LEAST_SECONDS, MOST_SECONDS))
