"""The errors for mistakes in a user's own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, UserError
from steppe.specs.environment import EnvironmentSpec


class Old(gymnasium.Env):
    """Returns the values of its class from step and reset."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    stepped: Any = (np.zeros(3, np.float32), 0.0, False, {})
    begun: Any = (np.zeros(3, np.float32), {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.begun

    def step(self, action: Any) -> Any:
        return self.stepped


class Nothing(Old):
    stepped = None


class OnlySeen(Old):
    begun = np.zeros(3, np.float32)


class NeedsRoom(Old):
    def __init__(self) -> None:
        int("room")


class Verbose(Old):
    def step(self, action: Any) -> Any:
        raise ValueError("no such joint:\n    elbow\n")


def _said(name: str) -> str:
    with GymnasiumEnvs(EnvironmentSpec(id=name), 1) as envs:
        try:
            envs.reset(0)
            envs.step(np.zeros(1, np.int32))
        except EnvironmentFault as error:
            return str(error)
    return ""


def test_an_error_of_several_lines_is_reported_in_one() -> None:
    said = _said(f"{__name__}:Verbose")
    assert "raised ValueError: no such joint: elbow (" in said
    assert "\n" not in said


def test_the_old_gym_api_is_recognised() -> None:
    said = _said(f"{__name__}:Old")
    assert "returned 4 values from step; return five: observation, reward, terminated, truncated, info" in said
    assert "the old gym API" in said


def test_the_error_for_a_step_that_returns_nothing_says_what_to_return() -> None:
    assert "did not return what step must; return five" in _said(f"{__name__}:Nothing")


def test_the_error_for_a_reset_without_info_says_what_to_return() -> None:
    assert "did not return what reset must; return two: observation, info" in _said(f"{__name__}:OnlySeen")


@pytest.mark.parametrize("name", ["my_env.py", "envs/my_env.py", "envs/my_env"])
def test_a_file_name_instead_of_a_module_is_explained(name: str) -> None:
    module = name.removesuffix(".py").replace("/", ".")
    with pytest.raises(UserError, match=f'names the file "{name}"; write its module instead, as in "{module}:Base"'):
        GymnasiumEnvs(EnvironmentSpec(id=f"{name}:Base"), 1)


def test_a_syntax_error_is_reported_with_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_written.py").write_text("class Base:\n    def step(self\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"SyntaxError: .*half_written\.py, line 2\); correct it"):
        GymnasiumEnvs(EnvironmentSpec(id="half_written:Base"), 1)


def test_a_constructor_that_raises_is_reported_with_its_line() -> None:
    with pytest.raises(
        EnvironmentFault, match=r"ValueError: .*test_own_mistakes\.py, line \d+, in __init__\); correct"
    ):
        GymnasiumEnvs(EnvironmentSpec(id=f"{__name__}:NeedsRoom"), 1)
