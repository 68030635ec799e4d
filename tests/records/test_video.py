"""Videos that play at the episode's speed and stay small."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from steppe.errors import EnvironmentFault, MissingExtra
from steppe.records import video
from steppe.records.video import write_gif

Image = pytest.importorskip("PIL.Image")


def frames(count: int) -> list[np.ndarray]:
    """A red bar that moves one pixel a frame, so no two frames are alike.   each: [16, count, 3]"""
    result = np.full((count, 16, max(count, 2), 3), 255, np.uint8)
    for index in range(count):
        result[index, :, index] = (200, 0, 0)
    return list(result)


def read(path: Path) -> tuple[list[np.ndarray], list[float]]:
    shown, durations = [], []
    with Image.open(path) as image:
        for index in range(image.n_frames):
            image.seek(index)
            shown.append(np.asarray(image.convert("RGB")))
            durations.append(image.info["duration"])
    return shown, durations


def test_every_frame_is_shown_for_its_time(tmp_path: Path) -> None:
    original = frames(10)
    path = write_gif(original, tmp_path / "a.gif", fps=25)
    shown, durations = read(path)
    assert path == tmp_path / "a.gif"
    assert durations == [40] * 10
    for left, right in zip(shown, original, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("fps", [7, 30, 50, 60, 100, 240])
def test_the_video_lasts_as_long_as_the_episode(tmp_path: Path, fps: int) -> None:
    shown, durations = read(write_gif(frames(90), tmp_path / "a.gif", fps))
    assert sum(durations) == pytest.approx(1000 * 90 / fps, abs=30)
    assert min(durations) >= 20
    np.testing.assert_array_equal(shown[-1], frames(90)[-1])


def test_a_long_episode_is_thinned_and_keeps_its_last_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MOST_FRAMES", 20)
    original = frames(100)
    shown, durations = read(write_gif(original, tmp_path / "a.gif", fps=20))
    assert len(shown) == 21
    assert sum(durations) == 5000
    np.testing.assert_array_equal(shown[1], original[5])
    np.testing.assert_array_equal(shown[-1], original[-1])


def test_frames_are_dropped_if_there_are_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MOST_BYTES", 60_000)
    noise = list(np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8))
    path = write_gif(noise, tmp_path / "a.gif", fps=10)
    assert path.stat().st_size <= 60_000
    shown, durations = read(path)
    assert 2 <= len(shown) < 40
    assert sum(durations) == 4000


def test_one_frame_is_a_video(tmp_path: Path) -> None:
    assert len(read(write_gif(frames(1), tmp_path / "a.gif", fps=30))[0]) == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "no frame was rendered"),
        ([np.zeros((4, 4), np.uint8)], r"shape \(4, 4\)"),
        ([np.zeros((4, 4, 3), np.float32)], "type float32"),
        ([None], "type object"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((5, 4, 3), np.uint8)], "different sizes"),
    ],
)
def test_frames_that_are_no_pictures_are_the_environments_fault(tmp_path: Path, bad: list, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        write_gif(bad, tmp_path / "a.gif", fps=30)
    assert list(tmp_path.iterdir()) == []


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r'writing a video needs .* pip install "steppe\[video\]"'):
        write_gif(frames(2), tmp_path / "a.gif", fps=30)
