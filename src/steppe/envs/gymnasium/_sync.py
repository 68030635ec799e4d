"""The loop over environments of this process; worker processes run the same loop."""

from __future__ import annotations

import contextlib
import re
from typing import Any, NamedTuple

import numpy as np

from steppe.envs.gymnasium.factory import make_env
from steppe.envs.gymnasium.wrappers import notices_of
from steppe.envs.spaces import ToEnv, Write, action_crossing, bulk_writer, observation_crossing
from steppe.errors import EnvironmentFault, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space
from steppe.specs.user_code import DEBUG, place_of, told

INFINITY = float("inf")


class StepBuffers(NamedTuple):
    """Arrays for the results of one step; `observations` may be left unchanged if no episode ended."""

    observations: np.ndarray
    next_observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class EnvDescription(NamedTuple):
    """The spaces of a spec's environments, and the limit of decisions in an episode."""

    observation_space: Space
    action_space: Space
    limit: int | None


class SyncEnvs:
    """Environments number `first` to `first + count - 1` of a run, stepped one after the other."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        count: int,
        max_timesteps: int | None,
        repeat: int,
        first: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self._id, self._first = spec.id, first
        self._envs: list[Any] = []
        self._write: Write
        self._to_env: ToEnv
        try:
            for i in range(count):
                env, own_limit = make_env(spec, render_mode, number=first + i)
                self._envs.append(env)
            if len({id(env.unwrapped) for env in self._envs}) < count:
                raise UserError(
                    f'environment "{spec.id}" returned the same environment twice; let it make a new one each time, or '
                    "use num_envs=1"
                )
            self.description, self._write, self._to_env = describe(spec, self._envs[0], own_limit, max_timesteps)
            self._own_limit = own_limit
            for env in self._envs[1:]:
                if (env.observation_space, env.action_space) != (
                    self._envs[0].observation_space,
                    self._envs[0].action_space,
                ):
                    raise UserError(
                        f'environment "{spec.id}" has other spaces each time it is made; give it settings that fix them'
                    )
        except BaseException:
            self.close()
            raise
        self.notices = notices_of(self._envs[0], spec.id)
        self._write_all = bulk_writer(self._envs[0].observation_space, self._write)
        self._taken = 0
        # The decision of the run at which each environment is truncated, so that a step needs one comparison, not N.
        self._deadlines = [0] * count
        self._next_deadline: float
        self._check = NumberCheck(self.description.observation_space)
        self.play_by(max_timesteps, repeat)

    def play_by(self, max_timesteps: int | None, repeat: int) -> None:
        """Changes the rules of an episode from the next reset on."""
        self.description = self.description._replace(limit=_shorter(self._own_limit, max_timesteps))
        self._steps = [env.step if repeat == 1 else _repeated(env.step, repeat) for env in self._envs]
        self._next_deadline = INFINITY

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """Seeds environment i (and its action space) with seed + i; observations: [N, ...]."""
        self._taken = 0
        for i, env in enumerate(self._envs):
            number = seed + self._first + i
            env.action_space.seed(number)
            self._begin(i, observations, number)
        self._set_deadlines(range(len(self._envs)))

    def step(self, actions: np.ndarray, out: StepBuffers) -> bool:
        """Actions [N, ...]; writes rows 0 to N - 1 of `out`. A hot path: little work per environment."""
        self._taken += 1
        observations, successors, rewards, terminated, truncated = out
        terminated.fill(False)
        truncated.fill(False)
        observed: list[Any] = []
        gained: list[float] = []
        ended: list[int] = []
        try:
            for step, action in zip(self._steps, self._to_env(actions), strict=True):
                obs, reward, is_terminated, is_truncated, _ = step(action)
                if is_terminated or is_truncated:
                    (terminated if is_terminated else truncated)[len(observed)] = True
                    ended.append(len(observed))
                observed.append(obs)
                gained.append(reward)
        except (Exception, SystemExit) as error:
            raise self._fault(len(observed), error) from error
        self._keep(observed, gained, successors, rewards)
        if self._taken >= self._next_deadline:
            late = [i for i, deadline in enumerate(self._deadlines) if deadline <= self._taken and not terminated[i]]
            truncated[late] = True
            ended = sorted({*ended, *late})
        if not ended:
            return False
        observations[:] = successors
        for i in ended:
            self._begin(i, observations)
        self._set_deadlines(ended)
        return True

    def close(self) -> None:
        """Closes every environment, also when one of them fails to."""
        envs, self._envs = self._envs, []
        for env in envs:
            with contextlib.suppress(Exception):
                env.close()

    def _keep(self, observed: list[Any], gained: list[Any], observations: np.ndarray, rewards: np.ndarray) -> None:
        """Writes the results of N environments; names the one that returned an invalid value."""
        try:
            rewards[:] = gained
            self._write_all(observed, observations)
        except Exception:
            for i, (obs, reward) in enumerate(zip(observed, gained, strict=True)):
                try:
                    rewards[i] = float(reward)
                except Exception as error:
                    raise self._named(i, f"returned the reward {reward!r}") from error
                try:
                    self._write(obs, observations, i)
                except Exception as error:
                    raise self._named(i, f"returned {error}") from error
        self._check(observations, rewards, self._named)

    def _begin(self, i: int, observations: np.ndarray, seed: int | None = None) -> None:
        """Starts an episode of environment i and writes its first observation into row i."""
        try:
            obs, _ = self._envs[i].reset() if seed is None else self._envs[i].reset(seed=seed)
            self._write(obs, observations, i)
        except (Exception, SystemExit) as error:
            raise self._fault(i, error, " when it was reset") from error
        self._check.row(observations[i], lambda what: self._named(i, what + " when it was reset"))

    def _set_deadlines(self, started: Any) -> None:
        limit = self.description.limit
        if limit is not None:
            for i in started:
                self._deadlines[i] = self._taken + limit
            self._next_deadline = min(self._deadlines)

    def _fault(self, i: int, error: BaseException, where: str = "") -> EnvironmentFault:
        if said := _wrong_count(error, "reset" if where else "step"):
            return self._named(i, said)
        return self._named(i, f"raised {told(error, where)}", f" ({DEBUG})")

    def _named(self, i: int, what: str, more: str = "") -> EnvironmentFault:
        return fault_of(f'environment "{self._id}" (number {self._first + i})', self._taken, what, more)


def fault_of(who: str, step: int, what: str, more: str = "") -> EnvironmentFault:
    """The error for an environment that did something wrong at a step."""
    return EnvironmentFault(
        f"{who} at step {step}: {what}; correct the environment, then resume from the last checkpoint{more}"
    )


def _wrong_count(error: BaseException, method: str) -> str | None:
    """A sentence if `error` comes from unpacking the result of `step` or `reset`, and not from inside of them."""
    is_ours = isinstance(error, TypeError | ValueError) and "unpack" in str(error) and not place_of(error)
    if not is_ours:
        return None
    count = re.search(r"got (\d+)", str(error))
    what = f"returned {count[1]} values from {method}" if count else f"did not return what {method} must"
    if method == "reset":
        return f"{what}; return two: observation, info"
    old = " (four is the old gym API, whose done is now terminated or truncated)" if count and count[1] == "4" else ""
    return f"{what}; return five: observation, reward, terminated, truncated, info{old}"


def _repeated(step: Any, times: int) -> Any:
    """A step that repeats its action, adds up the rewards, and stops at the end of the episode."""

    def repeat(action: Any) -> tuple[Any, float, bool, bool, Any]:
        total = 0.0
        for _ in range(times):
            obs, reward, terminated, truncated, info = step(action)
            total += reward
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info

    return repeat


def describe(
    spec: EnvironmentSpec, env: Any, own_limit: int | None, max_timesteps: int | None
) -> tuple[EnvDescription, Write, ToEnv]:
    """The description of an environment, and the conversions of its observations and actions."""
    observation_space, write = observation_crossing(env.observation_space, spec.id)
    action_space, to_env = action_crossing(env.action_space, spec.id)
    return EnvDescription(observation_space, action_space, _shorter(own_limit, max_timesteps)), write, to_env


def _shorter(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


class NumberCheck:
    """Finds NaN, infinities and invalid choices, in less than two microseconds a step."""

    def __init__(self, space: Space) -> None:
        self._is_float = isinstance(space, Box) and space.dtype == "float32"
        self._choices: tuple[int, np.ndarray] | None = None
        """The first choice and the one after the last, if observations are choices."""
        if isinstance(space, Discrete):
            self._choices = space.start, np.asarray(space.start + space.n)
        elif isinstance(space, MultiDiscrete):
            self._choices = 0, np.asarray(space.nvec)

    def __call__(self, rows: np.ndarray, rewards: np.ndarray, fault: Any) -> None:
        """Raises fault(i, what) for the first environment with a bad number; rows: [N, ...], rewards: [N]."""
        if _has_no_number(rewards):
            i = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise fault(i, f"returned the reward {rewards[i]}")
        if self._is_bad(rows):
            for i, row in enumerate(rows):
                self.row(row, lambda what, i=i: fault(i, what))

    def row(self, row: np.ndarray, fault: Any) -> None:
        """Raises fault(what) if one observation has a bad number."""
        if not self._is_bad(row):
            return
        if self._choices is None:
            raise fault(f"returned an observation with {row[~np.isfinite(row)][0]} in it")
        first, end = self._choices
        raise fault(f"returned the observation {row.tolist()}, which is not within {first} to {(end - 1).tolist()}")

    def _is_bad(self, values: np.ndarray) -> bool:
        if self._choices is not None:
            first, end = self._choices
            return bool(((values < first) | (values >= end)).any())
        return self._is_float and _has_no_number(values)


def _has_no_number(values: np.ndarray) -> bool:
    """Whether a value is NaN or infinite."""
    # Searching the bytes takes a third of the time of `.all()`, in every step.
    return 0 in np.isfinite(values).tobytes()
