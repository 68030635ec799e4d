from __future__ import annotations

import re

import numpy as np
import pytest

from steppe.envs import episode_recording
from steppe.envs.episode_recording import MAX_SIDE, record_episode
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Discrete


def test_a_compiled_environment_is_drawn_by_its_original() -> None:
    pytest.importorskip("pygame")
    shapes = []

    def act(observation: np.ndarray) -> int:
        shapes.append((observation.shape, observation.dtype))
        return 1

    recording = record_episode(EnvironmentSpec(id="CartPole-v1"), act, seed=0)
    assert recording.reason == ""
    assert recording.frames is not None
    assert 5 <= recording.length < 30
    assert recording.episode_return == recording.length == len(shapes)
    assert set(shapes) == {((4,), np.dtype("float32"))}
    assert all(frame.dtype == np.uint8 and frame.shape == (200, 300, 3) for frame in recording.frames)
    assert max(recording.frames[0].shape) <= MAX_SIDE
    # 50 frames a second are more than a GIF shows: every second one is kept.
    assert recording.fps == 25
    assert len(recording.frames) == (recording.length + 2) // 2
    assert np.any(recording.frames[0] != recording.frames[-1])


def test_the_limit_and_repeated_actions_hold_while_recording() -> None:
    pytest.importorskip("pygame")
    spec = EnvironmentSpec(id="Pendulum-v1")
    recording = record_episode(spec, lambda observation: np.zeros(1), max_timesteps_per_episode=4, repeat_actions=3)
    assert recording.length == 4
    assert recording.frames is not None
    assert recording.fps == 30
    assert len(recording.frames) == 1 + 12


def test_pictures_that_take_long_to_draw_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setattr(episode_recording, "MAX_SECONDS", 1e-9)
    recording = record_episode(EnvironmentSpec(id="Pendulum-v1"), lambda observation: np.zeros(1))
    assert recording.reason == ""
    assert recording.frames is not None
    assert (len(recording.frames), recording.length) == (1, 0)


def test_slow_pictures_are_thinned_out_so_that_the_video_shows_more_than_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pygame")
    # Any picture is slow, and yet there is time to draw all of them.
    monkeypatch.setattr(episode_recording, "SLOW", 0.0)
    monkeypatch.setattr(episode_recording, "SHOWN_SECONDS", 1e9)
    monkeypatch.setattr(episode_recording, "MAX_SECONDS", 600.0)
    spec = EnvironmentSpec(id="Pendulum-v1")
    recording = record_episode(spec, lambda observation: np.zeros(1), max_timesteps_per_episode=32)
    assert recording.frames is not None
    # 30 pictures a second become one in eight of them: those of timesteps 0, 8, 16, 24 and 32.
    assert (recording.fps, len(recording.frames), recording.length) == (3, 5, 32)


def test_robots_are_drawn_small_unless_their_settings_say_otherwise() -> None:
    pytest.importorskip("mujoco", reason="an extra is not installed")
    small = episode_recording._with_small_frames(EnvironmentSpec(id="HalfCheetah-v5"))
    assert small.settings == {"width": 240, "height": 240}
    wide = EnvironmentSpec(id="HalfCheetah-v5", settings={"width": 320, "height": 200})
    assert episode_recording._with_small_frames(wide).settings == wide.settings
    plain = EnvironmentSpec(id="CartPole-v1")
    assert episode_recording._with_small_frames(plain) is plain


def test_a_grid_draws_itself() -> None:
    spec = EnvironmentSpec(id="GridWorld-v0", settings={"width": 3, "height": 2})
    moves = iter([1, 1, 2])
    recording = record_episode(spec, lambda observation: next(moves))
    assert recording.frames is not None
    assert len(recording.frames) == 4
    assert recording.length == 3
    assert recording.episode_return == pytest.approx(0.98)
    assert recording.frames[0].shape == (256, 384, 3)


def test_frames_are_copies_if_an_environment_reuses_its_array() -> None:
    recording = record_episode(EnvironmentSpec(id="steppe_toys:Painter"), lambda observation: 0)
    assert recording.frames is not None
    assert [int(frame[0, 0, 0]) for frame in recording.frames] == [0, 10, 20, 30]
    assert recording.fps == 10


@pytest.mark.parametrize(
    ("id", "settings", "reason"),
    [
        ("steppe_toys:Counter", {}, "must accept render_mode"),
        ("NoSuchThing-v0", {}, "unknown environment"),
        ("steppe_toys:Silent", {}, "does not draw pictures \\(it returned NoneType\\)"),
        ("steppe_toys:Undrawn", {}, 'it has no "render" of its own'),
        ("steppe_toys:Painter", {"fault": "floats"}, "draws pictures of float32 where bytes are needed"),
        ("steppe_toys:Painter", {"fault": "render"}, "it raised RuntimeError: the canvas is torn"),
        ("steppe_toys:Painter", {"fault": "raise"}, "it raised RuntimeError: the engine is on fire"),
    ],
)
def test_a_recording_without_frames_has_the_reason(id: str, settings: dict, reason: str) -> None:
    recording = record_episode(EnvironmentSpec(id=id, settings=settings), lambda observation: 0)
    assert recording.frames is None
    assert re.search(reason, recording.reason), recording.reason


def test_an_atari_game_is_shown_in_full_and_scored_in_full() -> None:
    pytest.importorskip("ale_py", reason="the extra atari is not installed")
    shapes = set()
    turns = iter(range(10_000))

    def act(observation: np.ndarray) -> int:
        shapes.add((observation.shape, observation.dtype.name))
        return next(turns) % 4

    spec = EnvironmentSpec(id="ALE/Breakout-v5", settings={"clip_rewards": True, "episodic_life": True})
    recording = record_episode(spec, act, seed=1)
    assert recording.reason == ""
    assert recording.frames is not None
    assert recording.frames[0].shape == (210, 160, 3)
    assert shapes == {((4, 84, 84), "uint8")}
    assert recording.fps == 15
    # Five lives, each of which takes the ball some twenty decisions to fall.
    assert 100 < recording.length == len(recording.frames) - 1


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "MiniGrid-Empty-5x5-v0"])
def test_environments_of_other_packages_are_shown(id: str) -> None:
    pytest.importorskip({"H": "mujoco", "M": "minigrid"}[id[0]], reason="an extra is not installed")
    spec = EnvironmentSpec(id=id)
    with GymnasiumEnvs(spec, 1) as envs:
        space = envs.action_space
    action = 0 if isinstance(space, Discrete) else np.zeros(space.shape)
    recording = record_episode(spec, lambda observation: action, max_timesteps_per_episode=4)
    if "OpenGL" in recording.reason or "GL" in recording.reason:
        pytest.skip("this machine cannot draw without a screen")
    assert recording.reason == ""
    assert recording.frames
