"""The Python API of one experiment."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from steppe.errors import StopTraining, UserError
from steppe.experiments import lifecycle, seed_group
from steppe.experiments.given_environment import check_has_name, for_instance, is_same, named_environment
from steppe.experiments.hints import CALLS
from steppe.experiments.locations import WAIT_SECONDS, Location, location_of, location_to_start
from steppe.experiments.process.callback import OnProgress, says_stop
from steppe.experiments.process.run import run
from steppe.experiments.project import find_experiment, store_for_new_runs
from steppe.experiments.run_folder.status import progress_of
from steppe.experiments.run_folder.store import RunFolder, Status, Store
from steppe.files.run_files import POLICY_FOLDER
from steppe.specs.environment import IN_PROCESS

if TYPE_CHECKING:
    from steppe.experiments.players import Which
    from steppe.experiments.seed_group import SeedGroup
    from steppe.policies.policy import Policy
    from steppe.records.evaluation import Evaluation
    from steppe.specs.experiment import ExperimentSpec

log = logging.getLogger("steppe.experiments")


class Shows(Protocol):
    """The display of a group of seeds while it trains."""

    def update(self, group: SeedGroup) -> None:
        """Called several times a second."""

    def announce(self, sentence: str) -> None:
        """Shows a sentence at once."""


class Experiment:
    """A named spec and its run folder: `Experiment(environment="CartPole-v1", agent="ppo").start()`."""

    _modules: frozenset[str]
    """The Python modules that its policy may import."""

    def __init__(
        self,
        spec: ExperimentSpec | str | Path | None = None,
        *,
        folder: str | Path | None = None,
        force: bool = False,
        **fields: Any,
    ) -> None:
        """Checks the spec (itself, a file's name, or fields) and makes its run folder.

        Without a `name` and a `folder` it gets a number, as in `steppe train`; a `folder` gives its own name. With
        `force` an existing experiment is started anew; its old results are kept beside.
        """
        from steppe.specs.allowed_modules import named_by
        from steppe.specs.experiment import ExperimentSpec

        here = Path.cwd()
        _check_words(fields)
        if "environment" in fields:
            fields["environment"] = named_environment(fields["environment"])
        name = fields.get("name")
        if isinstance(spec, ExperimentSpec):
            if fields:
                raise TypeError("give an ExperimentSpec or fields, not both; spec.model_copy(update={...}) changes one")
            name = spec.name
        else:
            spec = load(spec, fields, here)
        spec = for_instance(spec)
        self._modules = named_by(spec).names
        _tell(lifecycle.check(spec, here))
        path = None if folder is None else Path(folder).expanduser()
        store = store_for_new_runs(here)
        self._folder = lifecycle.create(spec, store, name=name, path=path, force=force, ways=CALLS)

    @classmethod
    def train_seeds(
        cls,
        seeds: int | Iterable[int],
        *,
        folder: str | Path | None = None,
        force: bool = False,
        show: Callable[[SeedGroup], AbstractContextManager[Shows]],
        **fields: Any,
    ) -> list[Experiment]:
        """Trains several seeds side by side, each in a process of its own; `show` makes the display."""
        from steppe.specs.allowed_modules import named_by
        from steppe.specs.running.seeds import read_seeds

        if fields.get("seed") is not None:
            raise UserError("seed and seeds are both given; leave one out")
        here, chosen = Path.cwd(), read_seeds(seeds)
        _check_words(fields)
        spec = load(None, fields | {"environment": named_environment(fields["environment"])}, here)
        check_has_name(spec.environment, "a group of seeds")
        seed_group.check(spec)
        _tell(lifecycle.check(spec, here))
        path = None if folder is None else Path(folder).expanduser().absolute()
        store, name = (
            (store_for_new_runs(here), fields.get("name")) if path is None else (Store(path.parent), path.name)
        )
        made = seed_group.create(spec, store, chosen, name=name, force=force, ways=CALLS)
        with show(made) as shows:
            made.train(shows.update, shows.announce)
        if made.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if made.signal is not None:
            raise SystemExit(made.exit_code)
        _tell([f"seed {each.seed}: {each.reason}" for each in made.members if each.has_failed])
        experiments = [cls.open(each.folder.path) for each in made.members]
        for experiment in experiments:
            experiment._modules = named_by(spec).names
        return experiments

    @classmethod
    def open(cls, name: str | Path) -> Experiment:
        """The experiment of that name in the project around the current folder, or at that path."""
        experiment = cls.__new__(cls)
        experiment._modules = frozenset()
        experiment._folder = RunFolder(find_experiment(str(name), Path.cwd()).path, CALLS)
        return experiment

    def start(
        self,
        *,
        resume: bool = False,
        force: bool = False,
        cluster: str | None = None,
        on_progress: OnProgress | None = None,
        announce: Callable[[str], None] = lambda sentence: None,
        **fields: Any,
    ) -> Status:
        """Trains here and now until it ends; Ctrl-C saves a checkpoint, pauses, and then raises KeyboardInterrupt.

        `fields` change the experiment first; on `resume` only those that do not affect the learning, such as
        total_timesteps, and `environment` if it is an object that this process does not know yet. `on_progress` is
        called with a Progress after each chunk of training; if it returns False or raises StopTraining, the run saves a
        checkpoint and stops. `announce` gets sentences that must be seen at once. With `cluster`, or if it is on a
        cluster already, it trains there and is only watched from here: Ctrl-C ends the watching.
        """
        fields = self._with_environment(fields)
        location = location_to_start(self._folder, cluster)
        self._check_object(location.trainer)
        _tell(lifecycle.prepare(self._folder, resume=resume, force=force, fields=fields))
        location = location_to_start(self._folder, cluster)  # fields may have changed the platform
        if not location.is_here:
            location.start(resume=resume, force=force, tell=announce)
            with location.watched(announce):
                status = self._follow(location, on_progress)
                location.finish(announce)
            return status
        ended = run(self._folder, resume=resume, on_progress=on_progress, announce=announce)
        if ended.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if ended.signal is not None:
            raise SystemExit(ended.exit_code)
        return self.status

    def start_detached(
        self,
        *,
        resume: bool = False,
        force: bool = False,
        cluster: str | None = None,
        announce: Callable[[str], None] = lambda sentence: None,
        **fields: Any,
    ) -> int | None:
        """As `start`, in a process of its own, whose id is returned; its output goes to log.txt.

        Returns None if it trains on a cluster. `announce` gets a sentence if a process here waits for its end.
        """
        fields = self._with_environment(fields)
        self._check_object("a process of its own")
        _tell(lifecycle.prepare(self._folder, resume=resume, force=force, fields=fields))
        location = location_to_start(self._folder, cluster)
        started = location.start(resume=resume, force=force, tell=announce)
        location.leave(announce)
        return started.pid

    def download(self, to: str | Path, *, force: bool = False) -> list[Path]:
        """Copies the results to a folder of your own, from here or from its cluster."""
        return lifecycle.download(self._folder, Path(to).expanduser(), force=force)

    def delete(self, *, stored: bool = False) -> None:
        """Deletes it with all its results, here or on its cluster; with `stored` also those in object storage."""
        lifecycle.delete(self._folder, self.folder.parent.parent, stored=stored)

    def pause(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the process that trains it to save a checkpoint and pause, and waits until it has."""
        return location_of(self._folder).pause(timeout)

    def stop(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the process that trains it to save a checkpoint and stop, and waits until it has."""
        return location_of(self._folder).stop(timeout)

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self._folder.name

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def spec(self) -> ExperimentSpec:
        """The full spec, as in experiment.json."""
        return self._folder.spec()

    @property
    def status(self) -> Status:
        """State, timesteps, return and times, as of now."""
        return location_of(self._folder).status()

    def policy(self, *, allow_modules: str | Iterable[str] = ()) -> Policy:
        """The trained policy: `.act(observation)`.

        Its layers may import the Python modules in `allow_modules`, and those that its spec names if the experiment was
        made here. One that was opened may come from anywhere, so all its modules must be in `allow_modules`.
        """
        from steppe.policies.policy import load_policy
        from steppe.specs.allowed_modules import AllowedModules

        allowed = AllowedModules(self._modules) | AllowedModules.of(allow_modules)
        return load_policy(self.folder / POLICY_FOLDER, allow_modules=allowed)

    def evaluate(
        self,
        environment: Any = None,
        *,
        episodes: int = 100,
        seed: int = 0,
        greedy: bool = True,
        which: Which | None = None,
        allow_modules: str | Iterable[str] = (),
    ) -> Evaluation:
        """Plays whole episodes with the policy, in the experiment's environment or another one: `.evaluate().mean`.

        `which` is "best" for the policy that scored best on the way, "last" for the one at the end; None for the one
        in policy/. The same seed gives the same episodes. `allow_modules` is as in `policy`.
        """
        from steppe.experiments.players import find_player, named_as_environment
        from steppe.runners.play.evaluation import evaluate
        from steppe.specs.allowed_modules import AllowedModules

        environment = named_environment(environment)
        allowed = AllowedModules(self._modules) | AllowedModules.of(allow_modules) | named_as_environment(environment)
        policy, spec = find_player(f"{self.folder}/", None, environment, allowed, which)
        return evaluate(policy, spec, episodes=episodes, seed=seed, greedy=greedy)

    def metrics(self) -> list[dict[str, Any]]:
        """Every record of metrics.jsonl."""
        from steppe.tracking.metrics import read_metrics

        return read_metrics(self.folder)

    def _with_environment(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields with an environment that has a name; an object replaces the one that the run began with."""
        _check_words(fields, in_start=True)
        if "environment" not in fields:
            return fields
        known = self._environment_id()
        if known.startswith(IN_PROCESS) and not isinstance(fields["environment"], str | dict):
            from steppe import runners
            from steppe.envs.gymnasium.in_process import keep

            runners.release()  # the built run holds the previous object
            keep(known, fields["environment"])
            return {name: value for name, value in fields.items() if name != "environment"}
        named = named_environment(fields["environment"])
        rest = {name: value for name, value in fields.items() if name != "environment"}
        return rest if is_same(named, self.spec.environment) else fields | {"environment": named}

    def _environment_id(self) -> str:
        environment = self._folder.spec_data().get("environment")
        return str(environment.get("id", "")) if isinstance(environment, dict) else str(environment)

    def _check_object(self, needs_name: str | None) -> None:
        if needs_name is not None:
            check_has_name(self.spec.environment, needs_name)

    def _follow(self, location: Location, on_progress: OnProgress | None) -> Status:
        """Follows the run at its location; `on_progress` may stop it."""

        def show(seen: Status) -> None:
            if on_progress is not None and says_stop(on_progress(progress_of(seen))):
                raise StopTraining

        try:
            return location.follow(show)
        except StopTraining:
            return location.stop(WAIT_SECONDS)

    def __repr__(self) -> str:
        return f"Experiment({str(self.folder)!r}, {self.status.state})"


def load(file: str | Path | None, fields: dict[str, Any], start: Path) -> ExperimentSpec:
    """A spec from a file and fields; without a name it gets its run folder's later."""
    from steppe.spec_files import load_experiment

    named = fields if fields.get("name") else fields | {"name": lifecycle.WITHOUT_NAME}
    return load_experiment(file, named, [], start, options=False)


def _check_words(fields: dict[str, Any], in_start: bool = False) -> None:
    """Refuses arguments of other libraries, and names Steppe's counterpart."""
    for word in ("callback", "callbacks"):
        if word in fields:
            raise UserError(
                f'there is no "{word}"; give on_progress, a function that is called with a Progress after each chunk '
                "of training and may return False to stop, to steppe.train or Experiment.start"
            )
    if "on_progress" in fields and not in_start:
        raise UserError("on_progress belongs to the start of an experiment: experiment.start(on_progress=...)")


def _tell(notices: list[str]) -> None:
    for notice in notices:
        log.warning(notice)
