"""Projects: a folder with steppe.json and configs/, and finding an experiment by its name or its path."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import ProjectError, SpecError, StateError
from steppe.experiments.hints import commands
from steppe.experiments.run_folder.store import RunFolder, Store
from steppe.files.durable import storing, write_atomically
from steppe.files.run_files import SPEC_FILE
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.loading.files import OLD_PROJECT_FILE, PROJECT_FILE, find_project, read_project, read_spec_file
from steppe.specs.loading.suggestions import did_you_mean

if TYPE_CHECKING:
    from steppe.experiments.experiment import Experiment

EXPERIMENTS, LOOSE_RUNS = "experiments", "steppe-runs"


@dataclass(frozen=True)
class Project:
    """A project on disk: `Project.create(folder)` makes one, `Project.open()` finds the one around a folder."""

    root: Path

    @classmethod
    def create(
        cls, root: str | Path = ".", name: str | None = None, *, remote_id: str | None = None, force: bool = False
    ) -> Project:
        """Writes steppe.json and the default configs/ into the folder, as `steppe init` does.

        `remote_id` is the cloud project that it belongs to. Existing files are refused, or replaced with `force`.
        """
        init_project(Path(root), name, remote_id, force)
        return cls(Path(root).absolute())

    @classmethod
    def open(cls, start: str | Path = ".") -> Project:
        """The project that the folder lies in; a ProjectError if there is none."""
        return open_project(Path(start).absolute())

    @property
    def name(self) -> str:
        """Its name in steppe.json."""
        return str(_known(self.root).get("name", self.root.name))

    @property
    def remote_id(self) -> str | None:
        """The cloud project that it belongs to."""
        found = _known(self.root).get("remote_id")
        return None if found is None else str(found)

    def experiments(self) -> list[Experiment]:
        """Its experiments, by name."""
        from steppe.experiments.experiment import Experiment

        return [Experiment.open(folder.path) for folder in self.store.folders()]

    def experiment(self, name: str) -> Experiment:
        """One of its experiments."""
        from steppe.experiments.experiment import Experiment

        folder = self.store.folder(name)
        if not folder.exists:
            names = [each.name for each in self.store.folders()]
            raise StateError(f'no experiment "{name}" in {self.store.path}{did_you_mean(name, names)}')
        return Experiment.open(folder.path)

    def new(self, spec: str | Path | None = None, *, name: str, force: bool = False, **fields: Any) -> Experiment:
        """Makes an experiment in it, from a file's name or from fields; `start` trains it."""
        from steppe.experiments.experiment import Experiment

        return Experiment(spec, folder=self.store.folder(name).path, force=force, **fields)

    @property
    def store(self) -> Store:
        """Its experiments."""
        return Store(self.root / EXPERIMENTS)


def init_project(
    root: Path,
    name: str | None = None,
    remote_id: str | None = None,
    force: bool = False,
    *,
    service_account_key: str | None = None,
) -> list[Path]:
    """Writes steppe.json and the default configs; existing files are refused, all before the first is written.

    With `force` they are written over, and the project keeps its name and its cloud project unless others are given.
    """
    root = Path(root).absolute()
    about = {"name": root.name, "remote_id": None, "schema_version": 1} | (_known(root) if force else {})
    about |= {"name": name} if name is not None else {}
    if remote_id is not None:
        about = {key: value for key, value in about.items() if key != "service_account_key"} | {"remote_id": remote_id}
    if service_account_key is not None:
        about["service_account_key"] = service_account_key
    files = {root / PROJECT_FILE: json.dumps(about, indent=2) + "\n"}
    files |= {root / "configs" / path: text for path, text in templates()}
    existing = [path for path in files if path.exists()]
    if existing and not force:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise ProjectError(
            f"{existing[0].relative_to(root)}{more} exist{'' if more else 's'} already in {root}; "
            "use --force to write the defaults over them"
        )
    with storing(root):
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        (root / EXPERIMENTS).mkdir(exist_ok=True)
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def link_project(root: Path, remote_id: str, service_account_key: str | None) -> None:
    """Writes the cloud project into steppe.json; its other fields stay."""
    path = Path(root).absolute() / PROJECT_FILE
    about = read_spec_file(path)
    if not isinstance(about, dict):
        raise ProjectError(f"{path} does not describe a project; write it anew with: steppe init --force")
    about = {**about, "remote_id": remote_id, "service_account_key": service_account_key}
    kept = {name: value for name, value in about.items() if name != "service_account_key" or value is not None}
    write_atomically(path, json.dumps(kept, indent=2) + "\n")


def _known(root: Path) -> dict[str, Any]:
    """The contents of steppe.json; {} if it cannot be read, since it is then written anew."""
    if not any((root / name).is_file() for name in (PROJECT_FILE, OLD_PROJECT_FILE)):
        return {}
    try:
        about = read_project(root)
    except SpecError:
        return {}
    return about if isinstance(about, dict) else {}


def templates() -> Iterator[tuple[Path, str]]:
    """The shipped configs: (path below configs/, text)."""
    yield from _files(resources.files("steppe.experiments") / "templates", Path())


def open_project(start: Path) -> Project:
    """The project that `start` lies in."""
    root = find_project(start)
    if root is None:
        raise ProjectError(f'no project in {start} or above (no {PROJECT_FILE}); "steppe init" makes one here')
    return Project(root)


def store_for_new_runs(start: Path) -> Store:
    """The store of `steppe train`: the project's experiments, or ./steppe-runs outside a project."""
    root = find_project(start)
    return Project(root).store if root else Store(start / LOOSE_RUNS)


def known_stores(start: Path) -> list[Store]:
    """The stores in which an experiment's name is looked up from `start`."""
    root = find_project(start)
    stores = [Project(root).store] if root else []
    return [*stores, *([Store(start / LOOSE_RUNS)] if (start / LOOSE_RUNS).is_dir() else [])]


def find_experiment(name: str, start: Path) -> RunFolder:
    """The experiment of that name in the project (or in ./steppe-runs), or the run folder at that path."""
    if "/" in name or name in (".", "..", "~"):
        path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's own raises where there is no such user
        folder = RunFolder((start / path).resolve(), commands(shlex.quote(name)))
        if folder.exists:
            return folder
        raise StateError(f"no experiment in {folder.path} (it has no {SPEC_FILE})")
    stores = known_stores(start)
    for store in stores:
        folder = store.folder(name)
        if folder.exists:
            return folder
    folder = RunFolder(start / name)
    if folder.exists:
        return folder
    if not stores:
        raise ProjectError(
            f'no experiment "{name}": no project in {start} or above (no {PROJECT_FILE}); '
            'go to a project, make one with "steppe init", or give the path of a run folder'
        )
    names = [folder.name for store in stores for folder in store.folders()]
    listing = '; "steppe experiment list" shows those there are' if names else '; make one: "steppe experiment new"'
    raise StateError(f'no experiment "{name}" in {stores[0].path}{did_you_mean(name, names) or listing}')


def let_user_modules_import(start: Path) -> None:
    """Lets `module:callable` environments be imported from the current folder and the project, after all else."""
    root = find_project(start)
    for folder in (Path.cwd(), *([root] if root else [])):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def let_allowed_modules_import(start: Path, allowed: AllowedModules) -> None:
    """The same, but only if some module is allowed, so that downloaded folders stay off the path."""
    if allowed.names:
        let_user_modules_import(start)


def _files(folder: Traversable, below: Path) -> Iterator[tuple[Path, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, below / entry.name)
        elif entry.name.endswith(".json"):
            yield below / entry.name, entry.read_text(encoding="utf-8")
