"""Makes an experiment from a file and flags, for `train` and `experiment new`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steppe.experiments.run_folder.store import RunFolder, Store
    from steppe.experiments.seed_group import SeedGroup
    from steppe.specs.experiment import ExperimentSpec


def described(
    file: str | None, name: str | None, fields: dict[str, Any], sets: list[str], *, takes_files_name: bool, example: str
) -> tuple[ExperimentSpec, str | None]:
    """(the experiment that a command describes, its name or None if it gets a number)."""
    from steppe.errors import UserError
    from steppe.experiments.lifecycle import WITHOUT_NAME
    from steppe.spec_files import load_experiment
    from steppe.specs.loading.overrides import parse_override

    changed = [parse_override(text)[0][0] for text in sets]
    if file is None and "environment" not in fields and "environment" not in changed:
        raise UserError(f"no environment is given; try: {example}")
    is_named = name is not None or "name" in changed or (takes_files_name and file is not None)
    called = {"name": name if is_named else WITHOUT_NAME}
    spec = load_experiment(file, fields | called, sets, Path.cwd())
    return spec, spec.name if is_named else None


def changed_by(fields: Iterable[str], sets: Iterable[str]) -> set[str]:
    """The names of the fields that a command gives by options or by --set."""
    from steppe.specs.loading.overrides import parse_override

    return {*fields, *(str(parse_override(text)[0][0]) for text in sets)}


def make(spec: ExperimentSpec, store: Store, *, name: str | None, force: bool, start: bool, quiet: bool) -> RunFolder:
    """Checks a new experiment and makes its run folder; with `start` also prepares its start."""
    from steppe.cli.starting.running import say
    from steppe.experiments import lifecycle

    if start:
        lifecycle.check_has_cluster(spec)
    say(lifecycle.check(spec, Path.cwd()), quiet)
    folder = lifecycle.create(spec, store, name=name, force=force)
    if start:
        lifecycle.prepare(folder)
    return folder


def make_group(
    spec: ExperimentSpec,
    store: Store,
    seeds: str,
    *,
    name: str | None,
    force: bool,
    quiet: bool,
    detach: bool,
    fields: Iterable[str] = (),
) -> SeedGroup:
    """Checks an experiment once and makes the run folders of its seeds; `fields` are the fields that were given."""
    from steppe.cli.starting.running import say
    from steppe.errors import UserError
    from steppe.experiments import lifecycle, seed_group
    from steppe.specs.running.seeds import read_seeds

    if "seed" in fields:
        raise UserError("seed and --seeds are both given; leave one out")
    if detach:
        raise UserError(
            "--seeds trains as many at once as there are cores, which the command itself watches; leave out --detach, "
            "and to close the terminal meanwhile begin it with nohup: nohup steppe ... --seeds 5 -q &"
        )
    chosen = read_seeds(seeds)
    seed_group.check(spec)
    say(lifecycle.check(spec, Path.cwd()), quiet)
    return seed_group.create(spec, store, chosen, name=name, force=force)
