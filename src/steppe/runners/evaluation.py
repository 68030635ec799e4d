"""Plays whole episodes with a policy to tell what it is worth, beside all training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steppe.envs.in_process import is_instance
from steppe.envs.registry import DEFAULT_EPISODE_LIMIT, only_runs_compiled
from steppe.errors import UserError
from steppe.records.demonstrations import form
from steppe.records.evaluation import Evaluation
from steppe.records.policy import Policy
from steppe.runners.playing import Episode, play_episodes
from steppe.runners.setup import is_compiled, num_envs_of
from steppe.runners.single_environment import Host, Twin
from steppe.specs.environment import IN_PROCESS
from steppe.specs.experiment import ExperimentSpec

EPISODES = 100
"""How many are played where nothing else is said."""
MOST_ENVS = 8
"""How many environments are stepped together at most: more of them hardly play faster in one process."""
FIRST_SEED = 2**31
"""Environments of an evaluation are seeded from here on; those of evaluations on the way of a run lie below."""


def evaluate(
    policy: Policy,
    spec: ExperimentSpec,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    greedy: bool = True,
    num_envs: int | None = None,
    show: Callable[[list[Episode]], None] = lambda done: None,
    may_begin: Callable[[], bool] = lambda: True,
    tick: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Plays in the experiment's environment, with its time limit and its wrappers; `show` gets all episodes so far.

    The same policy, experiment, seed and `num_envs` give the same returns.
    """
    if episodes < 1:
        raise UserError(f"an evaluation plays at least 1 episode, not {episodes}")
    if not 0 <= seed < 2**32:
        raise UserError(f"the seed of an evaluation must be from 0 to {2**32 - 1}, not {seed}")
    width = min(episodes, num_envs_of(spec), MOST_ENVS) if num_envs is None else num_envs
    if spec.environment.id.startswith(IN_PROCESS) and is_instance(spec.environment.id):
        width = 1
    done: list[Episode] = []

    def ended(episode: Episode) -> None:
        done.append(episode)
        show(done)

    with open_environments(spec, width, as_gymnasium=True) as envs:
        check_fit(policy, envs, spec.environment.id)
        play_episodes(policy, envs, episodes, greedy, fresh_seed(seed), ended, may_begin, tick)
    return Evaluation(
        returns=tuple(episode.score for episode in done),
        lengths=tuple(episode.length for episode in done),
        seed=seed,
        greedy=greedy,
        environment=spec.environment.id,
        timestep=policy.description.timestep,
    )


def fresh_seed(seed: int) -> int:
    """Where an evaluation with this seed begins: away from the episodes of a training with the same seed."""
    return FIRST_SEED + int(np.random.SeedSequence([seed, FIRST_SEED]).generate_state(1)[0]) % 2**30


def open_environments(spec: ExperimentSpec, num_envs: int = 1, *, as_gymnasium: bool = False) -> Host | Twin:
    """The experiment's environments, compiled or not as training would have them; every episode has an end.

    With `as_gymnasium` the gymnasium original of a compiled environment is taken, where there is one of the same
    settings: few environments are stepped as fast in it, and nothing has to be compiled.
    """
    environment, limit, repeat = spec.environment, spec.max_timesteps_per_episode, spec.repeat_actions
    compiled = is_compiled(spec)
    if compiled and as_gymnasium:
        compiled = bool(environment.settings) or only_runs_compiled(environment)
    if compiled:
        return Twin(environment, limit, repeat, DEFAULT_EPISODE_LIMIT, num_envs)
    env = Host(environment, limit, repeat, num_envs)
    if limit is None and env.max_episode_steps is None:
        env.close()
        env = Host(environment, DEFAULT_EPISODE_LIMIT, repeat, num_envs)
    return env


def check_fit(policy: Policy, env: Any, id: str) -> None:
    """Refuses a policy of other spaces before it acts on something it does not know."""
    description = policy.description
    for what, own, wanted in (
        ("observations", description.shown, env.observation_space),
        ("actions", description.action, env.action_space),
    ):
        if form(own) != form(wanted):
            raise UserError(
                f"the policy was trained in {description.environment or 'another environment'}, whose {what} are not "
                f"those of {id}; give the --environment it was trained in, or another policy"
            )
