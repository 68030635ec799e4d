"""Makes an endpoint of a graph's file, a policy's folder or an experiment's name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from steppe.errors import UserError
from steppe.experiments.project import find_experiment
from steppe.policies.policy_folder import DESCRIPTION_FILE, TENSORS_FILE
from steppe.serve.endpoint import Endpoint
from steppe.serve.ledger import make_ledger
from steppe.serve.ledger.journal import Journals
from steppe.serve.limits import EndpointLimits
from steppe.serve.routing.graph import build
from steppe.serve.versions import Versions
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.loading.files import SUFFIXES, find_project
from steppe.specs.serving import GraphSpec, ModelSpec, check_name, load_graph

FOLDER = "serving"
"""The folder for the state of all endpoints, in a project or in the current folder."""
LEDGER_FILE = "ledger.sqlite"
POLICIES, JOURNAL = "policies", "journal"


def load_endpoint(
    graph: GraphSpec | str | Path,
    *,
    name: str | None = None,
    folder: Path | str | None = None,
    ledger: str | Path | None = None,
    start: Path | str | None = None,
    limits: EndpointLimits | None = None,
    seed: int | None = None,
    allow_modules: str | Iterable[str] = (),
) -> Endpoint:
    """The endpoint of a graph: a GraphSpec, a graph's file, a policy or run folder, or an experiment's name.

    `folder` holds its state, serving/<name> by default; `ledger` is another file, or a postgresql:// URL that several
    replicas share. Names and paths are relative to `start`; those in a file are first looked up beside the file.
    Policies may import the Python modules `allow_modules` for their layers, and no others.
    """
    here = Path.cwd() if start is None else Path(start).absolute()
    spec, spec_folder = _spec(graph, here)
    name = name or spec.name
    check_name(name)
    folder = serving_folder(name, here) if folder is None else Path(folder).absolute()
    folders = [*([spec_folder] if spec_folder else []), here]
    with _cleaned_up_on_error(folder):
        built = build(spec, _loader(folder, folders, AllowedModules.of(allow_modules)))
        location = str(ledger or folder / LEDGER_FILE)
        made = make_ledger(location, name)
        # A relative label, so that a project can be moved with its ledger.
        label = location.rpartition("@")[2] if "://" in location else os.path.relpath(location, folder)
        journals = Journals(folder / JOURNAL, name, label)
        return Endpoint(name, built, made, limits, seed=seed, journals=journals)


def serving_folder(name: str, start: Path) -> Path:
    """The folder with the state of the endpoint of that name."""
    check_name(name)
    return (find_project(start) or start) / FOLDER / name


def find_policy(name: str, folders: list[Path]) -> Path:
    """The policy folder for a name or a path, looked up from several folders."""
    for start in folders:
        path = (start / Path(name).expanduser()).absolute()
        path = path.parent if path.name in (TENSORS_FILE, DESCRIPTION_FILE) else path
        for candidate in (path, path / "policy"):
            if (candidate / TENSORS_FILE).is_file():
                return candidate
    found = find_experiment(name, folders[-1]).path / "policy"
    if not (found / TENSORS_FILE).is_file():
        raise UserError(f'experiment "{name}" has not saved a policy yet; serve it once it has trained for a while')
    return found


def _spec(graph: GraphSpec | str | Path, start: Path) -> tuple[GraphSpec, Path | None]:
    """(graph, folder of its file)."""
    if isinstance(graph, GraphSpec):
        return graph, None
    path = Path(graph)
    if path.suffix in SUFFIXES and path.name != DESCRIPTION_FILE:
        spec, file = load_graph(graph, start)
        return spec, file.parent
    return GraphSpec.model_validate(str(graph)), None


@contextlib.contextmanager
def _cleaned_up_on_error(folder: Path) -> Iterator[None]:
    """Removes copies of policies and folders that were made for a graph which is then refused."""
    made = [path for path in (folder / POLICIES, folder, folder.parent) if not path.exists()]
    before = set((folder / POLICIES).glob("*/*"))
    names = set((folder / POLICIES).glob("*"))
    try:
        yield
    except BaseException:
        for copy in set((folder / POLICIES).glob("*/*")) - before:
            shutil.rmtree(copy, ignore_errors=True)
        for path in [*(set((folder / POLICIES).glob("*")) - names), *made]:
            # Files that another endpoint has put there meanwhile stay.
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _loader(folder: Path, folders: list[Path], allowed: AllowedModules) -> Callable[[ModelSpec], Versions]:
    def load(spec: ModelSpec) -> Versions:
        archive = folder / POLICIES / spec.name
        return Versions(spec.name, find_policy(spec.policy, folders), archive, spec.version, allowed)

    return load
