"""Checks an environment before training, with a fix for each mistake."""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from steppe.compat.gymnasium_private import is_seeded
from steppe.envs.checks import values
from steppe.envs.episode_recording import draw_off_screen
from steppe.envs.gymnasium.factory import make_env
from steppe.envs.registry import DEFAULT_EPISODE_LIMIT, extra_of_error
from steppe.envs.spaces import action_crossing, observation_crossing
from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.user_code import told

Level = Literal["ok", "warning", "problem"]
STEPS = 1000
SECONDS = 20.0
"""The most time for random actions."""
COMPARED = 100
"""The number of steps that are repeated with the same seed."""
SLOW = 500.0
"""Steps a second below which worker processes are suggested."""
LARGE = 100.0
"""The absolute value from which on normalisation is suggested."""
RESET = "write def reset(self, *, seed=None, options=None) and call super().reset(seed=seed) first in it"


@dataclass(frozen=True)
class EnvironmentFinding:
    """A finding about one part of an environment."""

    part: str
    """ "making", "spaces", "reset", "observations", "rewards", "endings", "seed", "arrays", "speed" or "rendering"."""
    level: Level
    found: str
    fix: str = ""
    """The way to correct it."""


@dataclass(frozen=True)
class EnvironmentCheck:
    """All findings about an environment."""

    environment: str
    findings: tuple[EnvironmentFinding, ...]

    @property
    def problems(self) -> tuple[EnvironmentFinding, ...]:
        """Findings that can keep an agent from learning."""
        return tuple(finding for finding in self.findings if finding.level == "problem")

    @property
    def warnings(self) -> tuple[EnvironmentFinding, ...]:
        """Findings that are worth knowing or correcting."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def is_fine(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def __str__(self) -> str:
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.level:<8} {finding.part}: {finding.found}")
            lines += [f"         fix: {finding.fix}"] if finding.fix else []
        return "\n".join([*lines, self.summary])

    @property
    def summary(self) -> str:
        """`my_env:Target: 1 problem, 2 warnings`."""
        counts = [
            f"{len(some)} {word}{'' if len(some) == 1 else 's'}"
            for some, word in ((self.problems, "problem"), (self.warnings, "warning"))
            if some
        ]
        return f"{self.environment}: {', '.join(counts) or 'no problems'}"


def check_environment(spec: EnvironmentSpec, steps: int = STEPS, seed: int = 0) -> EnvironmentCheck:
    """Makes the environment, takes up to `steps` random actions in it, and lists all findings.

    Raises a UserError if there is no environment of this name or its settings are wrong.
    """
    if steps < 1:
        raise UserError(f"a check takes at least 1 step, not {steps}")
    check = _Check(spec, steps, seed)
    check.run()
    return EnvironmentCheck(spec.id, tuple(check.findings))


class _Check:
    """One environment and its findings; each finding is listed once."""

    def __init__(self, spec: EnvironmentSpec, steps: int, seed: int) -> None:
        self.spec, self.steps, self.seed = spec, steps, seed
        self.findings: list[EnvironmentFinding] = []
        self.env: Any = None
        self.limit: int | None = None
        self.takes_seed = True

    def begin(self, seed: int | None = None) -> Any:
        """The first observation of an episode, also from a `reset` without info or seed."""
        value = self.env.reset() if seed is None or not self.takes_seed else self.env.reset(seed=seed)
        return value[0] if not list(values.reset_mistakes(value)) else value

    def run(self) -> None:
        """Checks part by part; parts that depend on a failed one are skipped."""
        if not self._make():
            return
        try:
            if self._spaces() and self._reset():
                self._play()
                if self.takes_seed:
                    self._compare_seeds()
        finally:
            try:
                self.env.close()
            except Exception as error:
                self._warning("making", f"close raised {told(error)}", "make close work, also when called twice")
        self._render()

    def _make(self) -> bool:
        try:
            self.env, self.limit = make_env(self.spec)
        except EnvironmentFault as error:
            missing = "_space'" in str(error.__cause__) and isinstance(error.__cause__, AttributeError)
            fix = (
                "set self.observation_space and self.action_space in __init__, as in "
                "self.action_space = gymnasium.spaces.Discrete(2)"
            )
            self._problem("making", str(error), fix if missing else "")
            return False
        self._ok("making", f"made {type(self.env.unwrapped).__name__}")
        return True

    def _spaces(self) -> bool:
        before = len(self.findings)
        for name, crossing in (("observation_space", observation_crossing), ("action_space", action_crossing)):
            space = getattr(self.env, name, None)
            if space is None:
                self._problem("spaces", f"there is no {name}", f"set self.{name} in __init__")
            elif not isinstance(space, spaces.Space):
                is_old = type(space).__module__.startswith("gym.")
                found = f"{name} is a {type(space).__module__}.{type(space).__name__}, not a gymnasium space"
                self._problem("spaces", found, "import gymnasium instead of gym" if is_old else "")
            else:
                self._space(name, space)
                try:
                    crossing(space, self.spec.id)
                except SteppeError as error:
                    self._problem("spaces", str(error))
        is_usable = not any(finding.level == "problem" for finding in self.findings[before:])
        if len(self.findings) == before:
            self._ok("spaces", f"observes {self.env.observation_space}, acts in {self.env.action_space}")
        return is_usable

    def _space(self, name: str, space: spaces.Space) -> None:
        """Checks the bounds of a space."""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, each in inner:
                self._space(f"{name}[{key!r}]", each)
            return
        if not isinstance(space, spaces.Box):
            return
        if np.isnan(space.low).any() or np.isnan(space.high).any():
            self._problem("spaces", f"{name} has nan among its bounds", "write numbers, or -np.inf and np.inf")
        elif (space.low >= space.high).any():
            self._warning("spaces", f"{name} has a low that is not below its high", "leave out what never changes")
        elif name == "action_space" and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            self._warning(
                "spaces",
                "action_space has no bounds",
                "give finite low and high, since sac, td3, ddpg and naf scale their actions to them",
            )
        if len(space.shape) == 3 and space.dtype == np.uint8 and (space.low.min() != 0 or space.high.max() != 255):
            self._warning("spaces", f"{name} looks like an image, but is not within 0 to 255", "write low=0, high=255")

    def _reset(self) -> bool:
        """Checks `reset`; returns whether episodes can begin."""
        before = len(self.findings)
        names, takes_any = _parameters(self.env.unwrapped.reset)
        missing = [name for name in ("seed", "options") if name not in names and not takes_any]
        if missing:
            level: Level = "problem" if "seed" in missing else "warning"
            self._add("reset", level, f"reset does not take {' and '.join(missing)}", RESET)
        self.takes_seed = "seed" not in missing
        try:
            value = self.env.reset(seed=self.seed) if self.takes_seed else self.env.reset()
        except Exception as error:
            self._problem("reset", f"reset raised {told(error)}", "make reset work before the first step")
            return False
        mistakes = list(values.reset_mistakes(value))
        self._note("reset", mistakes)
        self._note(
            "reset", values.observation_mistakes(value[0] if not mistakes else value, self.env.observation_space)
        )
        if self.takes_seed and not is_seeded(self.env):
            self._warning("reset", "reset does not seed self.np_random", RESET)
        if len(self.findings) == before:
            self._ok("reset", "takes a seed and returns an observation of its space and an info")
        return True

    def _play(self) -> None:
        """Checks observations, rewards, endings, arrays and speed by random actions."""
        before = len(self.findings)
        played = _Played(self)
        try:
            played.run()
        except values.Unreadable:
            return
        except Exception as error:
            step = played.taken + 1
            self._problem("observations", f"at step {step} the environment raised {told(error)}", "correct it")
            return
        parts = {finding.part for finding in self.findings[before:]}
        if "observations" not in parts:
            self._ok("observations", f"{played.taken:,} of them were of their space")
        self._check_scale(played)
        self._check_endings(played)
        if "arrays" not in {finding.part for finding in self.findings[before:]}:
            self._ok("arrays", "each observation is an array of its own, and actions are left as they are")
        speed = played.taken / max(played.seconds, 1e-9)
        fix = '"vectorization": "processes" steps several of them at once, on several cores' if speed < SLOW else ""
        self._ok("speed", f"{speed:,.0f} steps a second in this process", fix)

    def _check_scale(self, played: _Played) -> None:
        if played.largest > LARGE:
            self._warning(
                "observations",
                f"values reach {played.largest:.3g}",
                'a network learns better from small ones: write "normalize_observations": true in the environment',
            )
        if not played.rewards or any(finding.part == "rewards" for finding in self.findings):
            return
        low, high = min(played.rewards), max(played.rewards)
        if low == high:
            found = f"it was {low:g} in all of {len(played.rewards):,} random steps"
            fix = "an agent learns from differences: let it explore for longer, or reward steps on the way"
            self._add("rewards", "warning" if low == 0 else "ok", found, fix if low == 0 else "")
        else:
            self._ok("rewards", f"from {low:.4g} to {high:.4g}")

    def _check_endings(self, played: _Played) -> None:
        lengths = played.lengths
        if lengths:
            mean = sum(lengths) / len(lengths)
            self._ok("endings", f"{len(lengths)} episodes ended, after {mean:.0f} steps on average")
        elif self.limit is not None:
            self._ok("endings", f"an episode is cut at {self.limit:,} steps")
        else:
            self._warning(
                "endings",
                f"no episode ended within {played.taken:,} random steps",
                f"return truncated=True after some time, or give --max-timesteps-per-episode; otherwise Steppe cuts "
                f"episodes at {DEFAULT_EPISODE_LIMIT:,}",
            )

    def _compare_seeds(self) -> None:
        """Compares two episodes with the same seed and actions."""
        fix = "draw random numbers only from self.np_random, which super().reset(seed=seed) seeds"
        try:
            first, second = self._trace(), self._trace()
        except Exception:
            return  # reported above
        for step, ((one, gained), (other, gained_too)) in enumerate(zip(first, second, strict=False)):
            if not values.are_equal(one, other) or not values.are_equal(gained, gained_too):
                where = "the first observation" if step == 0 else f"step {step}"
                self._warning("seed", f"the same seed and actions differ at {where}", fix)
                return
        self._ok("seed", f"the same seed and actions give the same {len(first) - 1} steps")

    def _trace(self) -> list[tuple[Any, Any]]:
        obs = self.begin(self.seed)
        self.env.action_space.seed(self.seed)
        seen = [(copy.deepcopy(obs), 0.0)]
        for _ in range(min(COMPARED, self.steps)):
            obs, reward, terminated, truncated, _ = values.five_values(self.env.step(self.env.action_space.sample()))
            seen.append((copy.deepcopy(obs), copy.copy(reward)))
            if terminated or truncated:
                break
        return seen

    def _render(self) -> None:
        """Checks whether videos can be made."""
        how = 'accept render_mode in __init__, keep it as self.render_mode, and return an image for "rgb_array"'
        draw_off_screen()
        try:
            env, _ = make_env(self.spec, render_mode="rgb_array")
        except SteppeError:
            self._warning("rendering", "it cannot be shown, so runs leave no film", how)
            return
        try:
            env.reset(seed=self.seed)
            picture = env.render()
        except NotImplementedError:
            self._warning("rendering", "it has no render, so runs leave no film", how)
            return
        except Exception as error:
            extra = extra_of_error(error)
            fix = how if extra is None else f'pip install "steppe[{extra}]"'
            self._warning("rendering", f"render raised {told(error)}", fix)
            return
        finally:
            with contextlib.suppress(Exception):
                env.close()
        if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3:
            self._ok("rendering", f"pictures of {picture.shape[1]} x {picture.shape[0]}")
        else:
            kind = f"an array of {picture.dtype}" if isinstance(picture, np.ndarray) else type(picture).__name__
            self._warning("rendering", f"render returned {kind}", "return np.uint8 of shape height, width, 3")

    def _note(self, part: str, mistakes: Iterable[values.Mistake]) -> None:
        for mistake in mistakes:
            self._add(part, "problem" if mistake.is_serious else "warning", mistake.found, mistake.fix)

    def _ok(self, part: str, found: str, fix: str = "") -> None:
        self._add(part, "ok", found, fix)

    def _warning(self, part: str, found: str, fix: str = "") -> None:
        self._add(part, "warning", found, fix)

    def _problem(self, part: str, found: str, fix: str = "") -> None:
        self._add(part, "problem", found, fix)

    def _add(self, part: str, level: Level, found: str, fix: str = "") -> None:
        self.findings.append(EnvironmentFinding(part, level, found, fix))


class _Played:
    """Random actions and their results."""

    def __init__(self, check: _Check) -> None:
        self._check, self._env = check, check.env
        self._reported: set[str] = set()
        self.taken = 0
        self.seconds = 0.0
        self.rewards: list[float] = []
        self.lengths: list[int] = []
        self.largest = 0.0

    def run(self) -> None:
        env, length = self._env, 0
        last = self._check.begin(self._check.seed)
        kept = copy.deepcopy(last)
        env.action_space.seed(self._check.seed)
        deadline = time.perf_counter() + SECONDS
        while self.taken < self._check.steps and time.perf_counter() < deadline:
            action = env.action_space.sample()
            given = copy.deepcopy(action)
            started = time.perf_counter()
            value = env.step(action)
            self.seconds += time.perf_counter() - started
            self.taken += 1
            length += 1
            for mistake in values.step_mistakes(value):
                self._once("observations", mistake.found, mistake.fix, True)
            obs, reward, terminated, truncated, info = values.five_values(value)
            self._look(obs, reward, terminated, truncated, info)
            if not values.are_equal(action, given):
                self._once(
                    "arrays", "step changes the action that it is given", "work on a copy: action = np.array(action)"
                )
            if not values.are_equal(last, kept) or any(
                np.shares_memory(a, b) for a in values.arrays_of(last) for b in values.arrays_of(obs)
            ):
                self._once(
                    "arrays",
                    "observations share their memory, so that a step changes the one before",
                    "return a copy: observation.copy()",
                )
            is_cut = self._check.limit is not None and length >= self._check.limit
            if terminated or truncated or is_cut:
                self.lengths.append(length)
                obs = self._check.begin()
                length = 0
            last, kept = obs, copy.deepcopy(obs)

    def _look(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        for part, mistakes in (
            ("observations", values.observation_mistakes(obs, self._env.observation_space)),
            ("rewards", values.reward_mistakes(reward)),
            (
                "endings",
                [*values.flag_mistakes("terminated", terminated), *values.flag_mistakes("truncated", truncated)],
            ),
        ):
            for mistake in mistakes:
                self._once(part, mistake.found, mistake.fix, mistake.is_serious)
        if not isinstance(info, dict):
            self._once("observations", f"info is a {type(info).__name__}, not a dict", "return {} as the last value")
        with contextlib.suppress(TypeError, ValueError):
            self.rewards.append(float(reward))
        for array in values.arrays_of(obs):
            if array.dtype.kind == "f" and array.size:
                self.largest = max(self.largest, float(np.abs(array).max()))

    def _once(self, part: str, found: str, fix: str, is_serious: bool = False) -> None:
        """Adds only the first mistake of each kind, since every step may repeat it."""
        if f"{part} {fix}" not in self._reported:
            self._reported.add(f"{part} {fix}")
            self._check._note(part, [values.Mistake(f"at step {self.taken}: {found}", fix, is_serious)])


def _parameters(function: Any) -> tuple[set[str], bool]:
    """(the names of its parameters, whether it takes arbitrary keyword arguments)."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set(), True
    return set(parameters), any(each.kind is each.VAR_KEYWORD for each in parameters.values())
