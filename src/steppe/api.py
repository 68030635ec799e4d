"""`steppe.train`, `evaluate`, `check_env` and `load_policy`: one call for each task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from steppe.errors import UserError
from steppe.experiments.experiment import Experiment

if TYPE_CHECKING:
    from steppe.envs.checks.environment import EnvironmentCheck
    from steppe.experiments.process.callback import OnProgress
    from steppe.policies.policy import Policy
    from steppe.records.evaluation import Evaluation
    from steppe.runners import Progress


@overload
def train(
    environment: Any,
    agent: str | dict[str, Any] = "ppo",
    *,
    folder: str | Path | None = None,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    seeds: None = None,
    **fields: Any,
) -> Experiment: ...


@overload
def train(
    environment: Any,
    agent: str | dict[str, Any] = "ppo",
    *,
    folder: str | Path | None = None,
    progress: bool = True,
    seeds: int | Iterable[int],
    **fields: Any,
) -> list[Experiment]: ...


def train(
    environment: Any,
    agent: str | dict[str, Any] = "ppo",
    *,
    folder: str | Path | None = None,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    seeds: int | Iterable[int] | None = None,
    **fields: Any,
) -> Experiment | list[Experiment]:
    """Trains an experiment; `fields` are those of an experiment file, such as total_timesteps, network or seed.

    `environment` is an id, a name such as "my_module:MyEnv", an object of an experiment file, or a gymnasium.Env: a
    class, a function that returns an instance, or an instance. The results go to `folder`; without one to experiments/
    in a project and to ./steppe-runs/ elsewhere. `on_progress` is called with a Progress after each chunk of training,
    about five times a second; if it returns False or raises StopTraining, the run saves a checkpoint and stops.

    With `seeds` (a number of seeds, or a list of them) it trains an experiment for each seed, side by side in processes
    of their own, and returns a list; the status of a failed one says so.
    """
    from steppe.display.live import print_line
    from steppe.display.progress import display
    from steppe.display.text import closing_line

    if seeds is not None:
        from functools import partial

        from steppe.display.seed_progress import display as display_group

        if on_progress is not None:
            raise UserError("on_progress is for one run, and seeds are trained in other processes; leave one out")
        of_group = partial(display_group, quiet=not progress)
        named = {"environment": environment, "agent": agent, **fields}
        return Experiment.train_seeds(seeds, folder=folder, show=of_group, **named)
    experiment = Experiment(environment=environment, agent=agent, folder=folder, **fields)
    with display(experiment.spec, quiet=not progress) as shows:

        def show(now: Progress) -> object:
            shows.update(now)
            return None if on_progress is None else on_progress(now)

        status = experiment.start(on_progress=show, announce=shows.announce)
    if progress:
        print_line(closing_line(experiment.name, experiment.folder, status))
    return experiment


def evaluate(
    policy: Policy | Experiment | str | Path,
    environment: Any = None,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    allow_modules: str | Iterable[str] = (),
) -> Evaluation:
    """Returns of whole episodes with a policy: `.mean`, `.deviation`, `.iqm`, `.interval`, `.min`, `.max`, `.returns`.

    `policy` is a `Policy`, an experiment or its name, or a policy folder; without an `environment` it plays in
    the one it was trained in. The same seed gives the same episodes, none of which occurs in training. Modules are only
    imported if `environment` or `allow_modules` names them.
    """
    from steppe.experiments.given_environment import named_environment
    from steppe.experiments.players import find_player, in_environment, is_policy, named_as_environment
    from steppe.policies.policy import Policy
    from steppe.runners.play import evaluation
    from steppe.specs.allowed_modules import AllowedModules

    if isinstance(policy, Experiment):
        return policy.evaluate(environment, episodes=episodes, seed=seed, greedy=greedy, allow_modules=allow_modules)
    environment = named_environment(environment)
    allowed = AllowedModules.of(allow_modules) | named_as_environment(environment)
    if isinstance(policy, Policy):
        player, spec = policy, in_environment(environment or policy.description.environment, allowed)
    else:
        word = str(policy)
        name, path = (None, word) if is_policy(word) else (word, None)
        player, spec = find_player(name, path, environment, allowed)
    return evaluation.evaluate(player, spec, episodes=episodes, seed=seed, greedy=greedy)


def check_env(
    environment: Any, *, steps: int = 1000, seed: int = 0, settings: dict[str, Any] | None = None
) -> EnvironmentCheck:
    """Finds problems of an environment and how to fix them: print the result, or read `.problems` and `.is_fine`.

    `environment` is as in `train`; `settings` are its keyword arguments. Up to `steps` random actions are taken.
    """
    from steppe.envs.checks.environment import check_environment
    from steppe.experiments.given_environment import named_environment
    from steppe.experiments.project import let_user_modules_import
    from steppe.spec_files import read_environment

    let_user_modules_import(Path.cwd())
    spec = read_environment(named_environment(environment))
    if settings is not None:
        spec = spec.model_copy(update={"settings": spec.settings | settings})
    return check_environment(spec, steps, seed)


def load_policy(policy: str | Path, *, allow_modules: str | Iterable[str] = ()) -> Policy:
    """Loads the policy of an experiment (by name), a run folder, a policy folder or a policy.json.

    A policy may have layers that are code of a Python module. Only modules in `allow_modules` are imported; a policy
    that names another one is refused.
    """
    from steppe.errors import ProjectError, StateError, UserError
    from steppe.experiments.project import find_experiment
    from steppe.policies import policy as policies

    path = Path(policy)
    if not path.exists() and len(path.parts) == 1:
        try:
            path = find_experiment(str(policy), Path.cwd()).path
        except (ProjectError, StateError) as error:
            raise UserError(f'there is no policy in "{policy}": {error}') from None
    return policies.load_policy(path, allow_modules=allow_modules)
