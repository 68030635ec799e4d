"""Environments of other packages, each made and stepped."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from steppe.envs.checks.environment import check_environment
from steppe.envs.episode_recording import record_episode
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, MissingExtra, UserError
from steppe.spec_files import read_environment
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box


def test_mujoco_steps_as_gymnasium_does_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with GymnasiumEnvs(read_environment("HalfCheetah-v2"), 2, max_timesteps_per_episode=20) as envs:
        assert envs.observation_space.shape == (17,)
        assert isinstance(envs.action_space, Box)
        original = [gymnasium.make("HalfCheetah-v5", max_episode_steps=20) for _ in range(2)]
        seen = [env.reset(seed=5 + i)[0] for i, env in enumerate(original)]
        np.testing.assert_array_equal(envs.reset(5), np.float32(seen))
        for t in range(1, 31):
            actions = rng.uniform(-1, 1, (2, 6)).astype(np.float32)
            step = envs.step(actions)
            for i, env in enumerate(original):
                obs, reward, _, truncated, _ = env.step(actions[i])
                np.testing.assert_array_equal(step.next_observations[i], np.float32(obs))
                assert step.rewards[i] == np.float32(reward)
                assert step.truncated[i] == truncated == (t == 20)
                if truncated:
                    env.reset()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("id", "shape"), [("LunarLander-v2", (8,)), ("BipedalWalker-v3", (24,))])
def test_box2d_runs(id: str, shape: tuple[int, ...]) -> None:
    if not _is_installed("Box2D"):
        pytest.skip("the extra box2d is not installed")
    with GymnasiumEnvs(read_environment(id), 2) as envs:
        assert envs.observation_space.shape == shape
        envs.reset(0)
        for _ in range(20):
            step = envs.step(np.zeros((2, *envs.action_space.shape), envs.action_space.dtype))
        assert np.isfinite(step.rewards).all()


def test_minigrid_is_observed_without_its_mission() -> None:
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    with GymnasiumEnvs(EnvironmentSpec(id="MiniGrid-Empty-5x5-v0"), 2) as envs:
        assert envs.observation_space.shape == (4 + 7 * 7 * 3,)
        assert "mission" in envs.notices[0]
        assert envs.max_episode_steps == 100
        envs.reset(0)
        ends = [envs.step(np.array([2, 0])) for _ in range(4)][-1]
        assert not ends.finished.any()
    spec = EnvironmentSpec(id="MiniGrid-Empty-5x5-v0", wrappers=["minigrid.wrappers.ImgObsWrapper"])
    with GymnasiumEnvs(spec, 1) as envs:
        assert envs.observation_space == Box((7, 7, 3), (0.0,), (255.0,), "uint8")
        assert envs.notices == ()


@pytest.mark.parametrize(
    ("id", "module", "extra"),
    [("ALE/Pong-v5", "ale_py", "atari"), ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid")],
)
@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_a_missing_package_names_the_extra(
    id: str, module: str, extra: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(gymnasium.registry, id, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf'environment "{id}" needs .*pip install "steppe\[{extra}\]"'):
        GymnasiumEnvs(EnvironmentSpec(id=id, backend=backend), 1)


def test_mujoco_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("mujoco", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without_mujoco(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "mujoco":
            raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_mujoco)
    with pytest.raises(MissingExtra, match=r'environment "Hopper-v5" needs .*pip install "steppe\[mujoco\]"'):
        GymnasiumEnvs(EnvironmentSpec(id="Hopper-v5"), 1)


@pytest.mark.parametrize("id", ["CartPole-v1", "FrozenLake-v1"])
def test_pictures_without_pygame_name_the_extra(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    reason = record_episode(EnvironmentSpec(id=id), lambda observation: 0).reason
    assert reason == f'showing environment "{id}" needs an optional package; run: pip install "steppe[video]"'
    found = check_environment(EnvironmentSpec(id=id, backend="gymnasium"), steps=20)
    told = [each for each in found.findings if each.part == "rendering"]
    assert [each.fix for each in told] == ['pip install "steppe[video]"']
    assert not any("gymnasium[" in each.found for each in found.findings)


def test_a_game_that_draws_itself_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    spec = EnvironmentSpec(id="CartPole-v1", backend="gymnasium", settings={"render_mode": "human"})
    with (
        GymnasiumEnvs(spec, 1) as envs,
        pytest.raises(EnvironmentFault, match=r'run `pip install "steppe\[video\]"`') as raised,
    ):
        envs.reset(0)
    assert "gymnasium[" not in str(raised.value)


def needs_toys(env: gymnasium.Env | None = None) -> gymnasium.Env:
    raise gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[toy-text]"`')


def needs_moviepy(env: gymnasium.Env) -> gymnasium.Env:
    raise gymnasium.error.DependencyNotInstalled('MoviePy is not installed, run `pip install "gymnasium[other]"`')


def imports_pygame() -> gymnasium.Env:
    raise ModuleNotFoundError("No module named 'pygame'", name="pygame")


@pytest.mark.parametrize("maker", ["needs_toys", "imports_pygame"])
def test_the_error_of_a_custom_environment_names_the_extra_of_a_missing_package(maker: str) -> None:
    with pytest.raises(MissingExtra, match=r'needs an optional package; run: pip install "steppe\[video\]"'):
        GymnasiumEnvs(EnvironmentSpec(id=f"{__name__}:{maker}"), 1)


def test_the_error_of_a_wrapper_names_the_extra_of_a_missing_package() -> None:
    spec = {"id": "CartPole-v1", "backend": "gymnasium"}
    with pytest.raises(MissingExtra, match=r'^wrapper ".*" of environment "CartPole-v1" needs .*"steppe\[video\]"'):
        GymnasiumEnvs(EnvironmentSpec.model_validate(spec | {"wrappers": [f"{__name__}:needs_toys"]}), 1)
    # Steppe has no extra for this one, so gymnasium's sentence stays.
    with pytest.raises(UserError, match=r'MoviePy is not installed, run `pip install "gymnasium\[other\]"`'):
        GymnasiumEnvs(EnvironmentSpec.model_validate(spec | {"wrappers": [f"{__name__}:needs_moviepy"]}), 1)


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
