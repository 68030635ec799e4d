"""One experiment with several seeds, trained side by side, each with a run folder and a process of its own.

Each seed is an ordinary experiment called NAME-sSEED, whose field `group` is NAME. Its process outlives this one, so
requests to the group are written to the request.json of each seed.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steppe.errors import StateError, SteppeError, UserError
from steppe.experiments import lifecycle
from steppe.experiments.hints import CALLS, Ways
from steppe.experiments.locations import local
from steppe.experiments.run_folder.store import RunFolder, Status, Store
from steppe.records.evaluation_score import Score
from steppe.signals import EndRequest

if TYPE_CHECKING:
    from steppe.platforms.local import LocalProcess
    from steppe.specs.experiment import ExperimentSpec

LOOK_SECONDS = 0.2
"""How often the status of each seed is read."""


class SeedRun:
    """One seed of a group."""

    def __init__(self, folder: RunFolder, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.status = Status()
        self.error: str | None = None
        """Why its process could not begin to train."""
        self.is_over = False
        self._process: LocalProcess | None = None
        self._logged = 0

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and not self.is_over

    @property
    def has_failed(self) -> bool:
        """Whether it ended by an error."""
        return self.error is not None or (self.is_over and self.status.state == "failed")

    @property
    def reason(self) -> str:
        """Why it ended, if it has."""
        return self.error or self.status.reason

    @property
    def evaluation(self) -> Score | None:
        """The newest evaluation of its policy."""
        return Score.read(self.status.evaluation)

    def start(self, cores: int) -> None:
        """Starts its process, which uses `cores` cores."""
        from steppe.envs.cores import VARIABLE
        from steppe.platforms import LocalPlatform

        self._logged = local.log_size(self.folder)
        try:
            lifecycle.prepare(self.folder)
            command, variables = local.training_command(self.folder), {VARIABLE: str(cores)}
            self._process = LocalPlatform().launch(command, self.folder.log, variables)
        except SteppeError as error:
            self.error, self.is_over = str(error), True

    def look(self) -> None:
        """Updates its status."""
        if self._process is None or self.is_over:
            return
        exit_code = self._process.exit_code()
        # Its process reports a folder that was moved or damaged.
        with contextlib.suppress(SteppeError):
            self.status = self.folder.read_status() if exit_code is None else self.folder.local_status()
        if exit_code is not None:
            self.is_over = True
            if exit_code and self.status.state == "created":
                self.error = local.last_words(self.folder, self._logged)

    def ask(self, action: str) -> None:
        """Asks its process to pause or stop; asks again if the process was not yet ready to see it."""
        with contextlib.suppress(SteppeError):
            if self.is_running and self.status.is_live and self.folder.asked() is None:
                self.folder.ask(action)


@dataclass(frozen=True)
class ScoreSummary:
    """The scores of several seeds."""

    count: int
    mean: float
    deviation: float
    """The sample's standard deviation, 0 of one score."""
    median: float
    least: float
    largest: float


class SeedGroup:
    """The seeds of one experiment, and their training."""

    def __init__(self, name: str, spec: ExperimentSpec, members: Sequence[SeedRun]) -> None:
        self.name, self.spec, self.members = name, spec, list(members)
        self.signal: int | None = None
        """The signal that ended it, if one did."""

    @property
    def exit_code(self) -> int:
        """128 + the signal that ended it, 1 if a member has failed, else 0."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if any(member.has_failed for member in self.members) else 0

    def train(
        self, show: Callable[[SeedGroup], None], announce: Callable[[str], None], at_once: int | None = None
    ) -> None:
        """Trains all seeds, as many at once as there are cores for.

        Ctrl-C pauses those that train and starts no others; a second one does not wait for them.
        """
        from steppe import runners

        runners.release()
        at_once = at_once or processes_at_once(self.spec)
        cores = cores_for_each(min(at_once, len(self.members)))
        with _Requests(announce) as asked:
            while True:
                for member in self.members:
                    member.look()
                    if asked.action is not None:
                        member.ask(asked.action)
                running = sum(member.is_running for member in self.members)
                waiting = [m for m in self.members if not (m.is_running or m.is_over)] if not asked.action else []
                for member in waiting[: max(0, at_once - running)]:
                    member.start(cores)
                show(self)
                if not running and not waiting:
                    break
                time.sleep(LOOK_SECONDS)
        self.signal = asked.signal

    @property
    def is_evaluated(self) -> bool:
        """Whether each seed that has a score has an evaluation; then all scores are evaluations."""
        scored = [each for each in self.members if each.status.mean_return is not None]
        return bool(scored) and all(each.evaluation is not None for each in scored)

    def score_of(self, member: SeedRun) -> float | None:
        """The score of a seed: its newest evaluation if all have one, else its mean return while learning."""
        if self.is_evaluated and member.evaluation is not None:
            return member.evaluation.mean
        return member.status.mean_return

    def scores(self) -> ScoreSummary | None:
        """A summary of all scores."""
        return summary_of([found for each in self.members if (found := self.score_of(each)) is not None])


def summary_of(scores: Sequence[float]) -> ScoreSummary | None:
    """Mean, deviation, median, least and largest; None without scores."""
    if not scores:
        return None
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return ScoreSummary(
        len(scores), statistics.fmean(scores), deviation, statistics.median(scores), min(scores), max(scores)
    )


def create(
    spec: ExperimentSpec,
    store: Store,
    seeds: Iterable[int],
    *,
    name: str | None = None,
    force: bool = False,
    ways: Ways | None = None,
) -> SeedGroup:
    """Makes the experiments in the store, called after `name`, or after their `stem` and a new number."""
    check(spec)
    seeds = tuple(seeds)
    group = _new_name(store, lifecycle.stem(spec)) if name is None else name
    folders = {seed: store.folder(f"{group}-s{seed}") for seed in seeds}
    for folder in folders.values():
        if folder.exists and not force:
            raise StateError(
                f'experiment "{folder.name}" exists already in {store.path}; choose another name, or replace it with '
                f"{'force=True' if ways is CALLS else '--force'} (its old results are kept beside)"
            )
    members = []
    for seed, folder in folders.items():
        its_own = spec.model_copy(update={"seed": seed, "group": group})
        made = lifecycle.create(its_own, store, name=folder.name, path=folder.path, force=force, ways=ways)
        members.append(SeedRun(made, seed))
    return SeedGroup(group, spec, members)


def check(spec: ExperimentSpec) -> None:
    """Refuses experiments for a cluster."""
    if spec.platform == "kubernetes":
        raise UserError(
            "several seeds are trained side by side on this machine only; for a cluster make an experiment for each of "
            "them, as with --seed 1 -n walk-s1 --set group=walk, and start each there"
        )


def processes_at_once(spec: ExperimentSpec) -> int:
    """How many seeds train at once: one a core, or fewer if each has several workers."""
    from steppe.envs.cores import available_cores

    each = 1 if spec.run_mode == "single" else spec.num_workers
    return max(1, available_cores() // each)


def cores_for_each(processes: int) -> int:
    """The share of the cores that each of several processes gets."""
    from steppe.envs.cores import available_cores

    return max(1, available_cores() // processes)


class _Requests(EndRequest):
    """Signals are requests to all seeds."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        super().__init__()
        self._announce = announce

    def received(self, number: signal.Signals) -> None:
        """Announces the request."""
        self._announce(f"asking all seeds to {self.action} (Ctrl-C again leaves them to do so by themselves)")


def _new_name(store: Store, stem: str) -> str:
    """The first of `stem-1`, `stem-2` ... that is neither an experiment nor a group."""
    try:
        taken = [entry.name for entry in store.path.iterdir()]
    except OSError:
        taken = []
    number = 1
    while any(each == f"{stem}-{number}" or each.startswith(f"{stem}-{number}-s") for each in taken):
        number += 1
    return f"{stem}-{number}"
