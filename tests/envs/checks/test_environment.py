"""The findings of a check in environments with one mistake each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import steppe
from steppe.cli import main
from steppe.errors import UserError

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete


class Sound(gymnasium.Env):
    """A correct environment."""

    observation_space: Any = Box(-10, 10, (2,), np.float32)
    action_space: Any = Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), float(action), self.steps == 10, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class NoSpaces(Sound):
    def __init__(self, render_mode: str | None = None) -> None:
        raise AttributeError("'NoSpaces' object has no attribute 'action_space'")


class NanBounds(Sound):
    observation_space = Box(-10, 10, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = Box(-10, 10, (2,), np.float32)
        self.observation_space.low[0] = np.nan


class EndlessActions(Sound):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(action[0])


class TextActions(Sound):
    action_space = gymnasium.spaces.Text(3)


class NoSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoInfo(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class OldGym(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class StepsToNothing(Sound):
    def step(self, action: Any) -> Any:
        return None


class Raises(Sound):
    def step(self, action: Any) -> Any:
        if self.steps == 4:
            raise ValueError("no such room")
        return super().step(action)


class WrongShape(Sound):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class Doubles(Sound):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class AList(Sound):
    def observe(self) -> Any:
        return super().observe().tolist()


class Outside(Sound):
    def observe(self) -> Any:
        return super().observe() + np.float32(20)


class NotANumber(Sound):
    def observe(self) -> Any:
        return super().observe() * np.float32(np.nan)


class _Rewards(Sound):
    reward: Any = 0.0

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, self.reward, *rest)


class Rewardless(_Rewards):
    pass


class RewardsInWords(_Rewards):
    reward = "much"


class RewardsInArrays(_Rewards):
    reward = np.ones(1)


class EndlessRewards(_Rewards):
    reward = float("inf")


class EndsByNumbers(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


class NeverEnds(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


class OwnDice(Sound):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class OneArray(Sound):
    seen = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.seen += np.float32(1e-3)
        return self.seen


class ChangesActions(Sound):
    action_space = Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> Any:
        action += 1
        return super().step(action[0])


class Large(Sound):
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> Any:
        return super().observe() * np.float32(1e6)


class Undrawn(Sound):
    def render(self) -> Any:
        raise NotImplementedError


class NoMode(Sound):
    def __init__(self) -> None:
        super().__init__()


FINDINGS = [
    (NoSpaces, "making", "problem", "no attribute 'action_space'", "set self.observation_space and self.action_space"),
    (NanBounds, "spaces", "problem", "nan among its bounds", "-np.inf"),
    (EndlessActions, "spaces", "warning", "no bounds", "finite low and high"),
    (TextActions, "spaces", "problem", "takes actions from a Text space", ""),
    (NoSeed, "reset", "problem", "reset does not take seed and options", "seed=None, options=None"),
    (NoInfo, "reset", "problem", "reset returned array", "two values: observation, info"),
    (OldGym, "observations", "problem", "step returned 4 values, not five", "this is the old gym API"),
    (StepsToNothing, "observations", "problem", "step returned None", "return observation, reward, terminated"),
    (Raises, "observations", "problem", "at step 5 the environment raised ValueError: no such room (", "correct it"),
    (WrongShape, "observations", "problem", "shape (3,), but its space says (2,)", "shape=(3,) in the space"),
    (Doubles, "observations", "warning", "of float64, but its space says float32", "astype(np.float32)"),
    (AList, "observations", "warning", "a list, not a NumPy array", "np.array(values, np.float32)"),
    (Outside, "observations", "problem", "outside of its space, -10.0 to 10.0", "widen low and high"),
    (NotANumber, "observations", "problem", "nan in it", "division"),
    (Rewardless, "rewards", "warning", "0 in all of 200 random steps", "explore"),
    (RewardsInWords, "rewards", "problem", "'much' (str), not a number", "a float"),
    (RewardsInArrays, "rewards", "warning", "an array of shape (1,)", "float(reward.item())"),
    (EndlessRewards, "rewards", "problem", "the reward is inf", "division"),
    (EndsByNumbers, "endings", "warning", "terminated is 0 (int)", "bool(terminated)"),
    (NeverEnds, "endings", "warning", "no episode ended within 200", "--max-timesteps-per-episode"),
    (OwnDice, "seed", "warning", "differ at the first observation", "self.np_random"),
    (OneArray, "arrays", "warning", "a step changes the one before", "observation.copy()"),
    (ChangesActions, "arrays", "warning", "changes the action", "np.array(action)"),
    (Large, "observations", "warning", "values reach", "normalize_observations"),
    (Undrawn, "rendering", "warning", "no render", "render_mode"),
    (NoMode, "rendering", "warning", "cannot be shown", "render_mode"),
]


@pytest.mark.parametrize(("kind", "part", "level", "found", "fix"), FINDINGS, ids=lambda each: str(each)[:30])
def test_each_mistake_is_found_and_explained(kind: Any, part: str, level: str, found: str, fix: str) -> None:
    report = steppe.check_env(kind, steps=200)
    matching = [each for each in report.findings if (each.part, each.level) == (part, level) and found in each.found]
    assert len(matching) == 1, str(report)
    assert fix in matching[0].fix
    assert report.is_fine == (level != "problem")


def test_a_correct_environment_has_only_good_findings() -> None:
    report = steppe.check_env(Sound)
    assert [each.part for each in report.findings if each.level == "ok"] == [
        "making",
        "spaces",
        "reset",
        "observations",
        "rewards",
        "endings",
        "arrays",
        "speed",
        "seed",
        "rendering",
    ]
    assert len(report.findings) == 10
    assert str(report).endswith("no problems")


def test_several_mistakes_are_listed_together() -> None:
    class Several(OldGym):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset(seed=1)[0]

    report = steppe.check_env(Several)
    assert len(report.problems) >= 3
    assert "seed" not in {each.part for each in report.findings}


def test_an_instance_and_an_id_are_checked_too() -> None:
    assert steppe.check_env(Sound()).is_fine
    assert steppe.check_env("CartPole-v1", steps=50).is_fine


def test_settings_reach_the_environment() -> None:
    with pytest.raises(UserError, match="does not accept its settings"):
        steppe.check_env(Sound, settings={"heigth": 1})


def test_the_command_prints_findings_and_its_exit_code_reports_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["env", "check", f"{__name__}:Sound", "--steps", "20"]) == 0
    assert "\ntest_env_check:Sound: no problems\n" in capsys.readouterr().out.replace(__name__, "test_env_check")
    assert main(["env", "check", f"{__name__}:OldGym", "--steps", "20"]) == 1
    assert "fix: this is the old gym API" in capsys.readouterr().out
    assert main(["env", "check", f"{__name__}:OldGim"]) == 2
    assert 'did you mean "OldGym"' in capsys.readouterr().err
    assert main(["env", "check", f"{__name__}:OldGym", "--steps", "20", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_fine"], printed["findings"][0]["part"]) == (False, "making")
