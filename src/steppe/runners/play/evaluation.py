"""Evaluates a policy by playing whole episodes in environments of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from steppe.envs.gymnasium.in_process import is_instance
from steppe.envs.registry import DEFAULT_EPISODE_LIMIT, only_runs_compiled
from steppe.errors import SteppeError, UserError
from steppe.policies.policy import Policy
from steppe.records.demonstrations import form
from steppe.records.evaluation import Evaluation
from steppe.runners.play.episodes import PlayedEpisode, play_episodes
from steppe.runners.play.play_envs import CompiledPlayEnvs, GymnasiumPlayEnvs
from steppe.runners.setup import is_compiled, num_envs_of
from steppe.specs.environment import IN_PROCESS
from steppe.specs.experiment import ExperimentSpec

EPISODES = 100
"""The default number of episodes."""
MOST_ENVS = 8
"""The most environments stepped together: more are hardly faster in one process."""
LOOK_SECONDS = 0.2
"""How often an evaluation with a time limit checks whether it should end."""
FIRST_SEED = 2**31
"""The smallest seed of these evaluations; evaluations during training use smaller ones."""


class NoEpisode(SteppeError):
    """No episode ended in time."""


class _OutOfTime(Exception):
    """The time of an evaluation is over."""


class TimeLimit:
    """The time limit of an evaluation: episodes begin in its first half and end in its second.

    So long episodes are not left out, unless one takes more than half of the time.
    """

    def __init__(
        self,
        seconds: float,
        look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` is called a few times a second, and may raise to end the evaluation."""
        self.seconds = seconds
        self._look, self._clock = look, clock
        self._began = self._looked = clock()

    def may_begin(self) -> bool:
        """Whether there is time for another episode."""
        return self._clock() - self._began < self.seconds / 2

    def check(self) -> None:
        """Called at each timestep; raises an exception when the time is over."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        if now - self._began >= self.seconds:
            raise _OutOfTime


def evaluate(
    policy: Policy,
    spec: ExperimentSpec,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    greedy: bool = True,
    num_envs: int | None = None,
    show: Callable[[list[PlayedEpisode]], None] = lambda done: None,
    time_limit: TimeLimit | None = None,
) -> Evaluation:
    """Plays in the experiment's environment, with its time limit and its wrappers; `show` gets all episodes so far.

    The same policy, experiment, seed and `num_envs` give the same returns. With a `time_limit` there may be fewer
    episodes, but one at least: NoEpisode is raised if none has ended in time.
    """
    if episodes < 1:
        raise UserError(f"an evaluation plays at least 1 episode, not {episodes}")
    if not 0 <= seed < 2**32:
        raise UserError(f"the seed of an evaluation must be from 0 to {2**32 - 1}, not {seed}")
    width = min(episodes, num_envs_of(spec), MOST_ENVS) if num_envs is None else num_envs
    if spec.environment.id.startswith(IN_PROCESS) and is_instance(spec.environment.id):
        width = 1
    done: list[PlayedEpisode] = []

    def ended(episode: PlayedEpisode) -> None:
        done.append(episode)
        show(done)

    limit = time_limit or TimeLimit(np.inf)
    with open_environments(spec, width, as_gymnasium=True) as envs, contextlib.suppress(_OutOfTime):
        check_fit(policy, envs, spec.environment.id)
        play_episodes(policy, envs, episodes, greedy, fresh_seed(seed), ended, limit.may_begin, limit.check)
    if not done:
        raise NoEpisode(f"no episode of {spec.environment.id} ended within {limit.seconds:.3g} s")
    return Evaluation(
        returns=tuple(episode.score for episode in done),
        lengths=tuple(episode.length for episode in done),
        seed=seed,
        greedy=greedy,
        environment=spec.environment.id,
        timestep=policy.description.timestep,
    )


def fresh_seed(seed: int) -> int:
    """The first seed of an evaluation, apart from those of a training with the same seed."""
    return FIRST_SEED + int(np.random.SeedSequence([seed, FIRST_SEED]).generate_state(1)[0]) % 2**30


def open_environments(
    spec: ExperimentSpec, num_envs: int = 1, *, as_gymnasium: bool = False
) -> GymnasiumPlayEnvs | CompiledPlayEnvs:
    """The experiment's environments, compiled or not as in training, with a time limit for every episode.

    With `as_gymnasium` the gymnasium original of a compiled environment is used, if there is one with the same
    settings: it steps a few environments as fast, without compilation.
    """
    environment, limit, repeat = spec.environment, spec.max_timesteps_per_episode, spec.repeat_actions
    compiled = is_compiled(spec)
    if compiled and as_gymnasium:
        compiled = bool(environment.settings) or only_runs_compiled(environment)
    if compiled:
        return CompiledPlayEnvs(environment, limit, repeat, DEFAULT_EPISODE_LIMIT, num_envs)
    env = GymnasiumPlayEnvs(environment, limit, repeat, num_envs)
    if limit is None and env.max_episode_steps is None:
        env.play_by(DEFAULT_EPISODE_LIMIT, repeat)
    return env


def check_fit(policy: Policy, env: Any, id: str) -> None:
    """Refuses a policy that was trained with other spaces."""
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
