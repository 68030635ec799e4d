"""Finds the policy that a user names, and the environment in which it plays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steppe.errors import ProjectError, StateError, UserError
from steppe.experiments.project import find_experiment, let_allowed_modules_import
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.run_files import BEST_FOLDER, LAST_FOLDER, POLICY_FOLDER
from steppe.policies.policy_folder import TENSORS_FILE
from steppe.spec_files import read_environment
from steppe.specs.allowed_modules import AllowedModules, named_by, named_in

if TYPE_CHECKING:
    from steppe.policies.policy import Policy
    from steppe.specs.experiment import ExperimentSpec

Which = Literal["best", "last"]


def find_player(
    experiment: str | None,
    policy: str | None,
    environment: str | dict[str, Any] | None,
    allowed: AllowedModules,
    which: Which | None = None,
) -> tuple[Policy, ExperimentSpec]:
    """(the policy, an experiment in whose environment it plays); ModuleNotAllowed if one names another module.

    `experiment` is a name or a run folder, `policy` a policy folder; both play where they were trained, unless an
    `environment` is given.
    """
    from steppe.policies.policy import load_policy

    let_allowed_modules_import(Path.cwd(), allowed)
    spec: ExperimentSpec | None
    if experiment is not None:
        folder = find_experiment(experiment, Path.cwd())
        player, spec = load_policy(policy_folder(folder, which), allow_modules=allowed), folder.spec()
    else:
        player = load_policy(policy or "", allow_modules=allowed)
        spec = _run_around(Path(policy or "")) if environment is None else None
    if environment is not None or spec is None:
        return player, in_environment(environment or player.description.environment, allowed, spec)
    allowed.check_environment(spec.environment, f'experiment "{spec.name}"')
    return player, spec


def in_environment(
    environment: str | dict[str, Any], allowed: AllowedModules, spec: ExperimentSpec | None = None
) -> ExperimentSpec:
    """The experiment with another environment; without `spec` an experiment with nothing but that environment."""
    from steppe.spec_files import load_experiment

    if not environment:
        raise UserError("this policy does not say where it was trained; give an --environment")
    words = {"name": "player", "agent": "random", "environment": environment}
    given = load_experiment(None, words, [], Path.cwd())
    allowed.check_environment(given.environment, f'"{given.environment.id}"')
    return given if spec is None else spec.model_copy(update={"environment": given.environment})


def named_as_environment(environment: str | dict[str, Any] | None) -> AllowedModules:
    """The modules that a caller names by giving this environment."""
    if isinstance(environment, dict):
        return named_by(read_environment(environment))
    return named_in(environment)


def is_policy(text: str) -> bool:
    """Whether a word names a policy folder (or a file of one) instead of an experiment."""
    path = Path(text)
    return (path / TENSORS_FILE).is_file() or (path.name.startswith("policy.") and path.is_file())


def policy_folder(folder: RunFolder, which: Which | None = None) -> Path:
    """The folder of a run's policy: its best one, its last one, or by default the one in policy/."""
    if which == "best":
        best = folder.path / BEST_FOLDER
        if not (best / TENSORS_FILE).is_file():
            raise StateError(
                f'experiment "{folder.name}" has no best policy yet, since no episode or evaluation has ended; '
                "leave out --best"
            )
        return best
    # The last policy has a folder of its own only if another one is handed out.
    if which == "last" and (folder.path / LAST_FOLDER / TENSORS_FILE).is_file():
        return folder.path / LAST_FOLDER
    return folder.path / POLICY_FOLDER


def _run_around(policy: Path) -> ExperimentSpec | None:
    """The experiment in whose run folder a policy lies: it describes the environment more fully than the policy."""
    folder = (policy.parent if policy.is_file() else policy).absolute()
    for path in (folder, folder.parent, folder.parent.parent):
        try:
            return find_experiment(f"{path}/", Path.cwd()).spec()
        except (StateError, ProjectError):
            continue
    return None
