"""Videos of an episode, as GIFs that play in any browser and fit into the report."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import EnvironmentFault, MissingExtra
from steppe.files.durable import write_atomically

MOST_BYTES = 4_500_000
MOST_FRAMES = 500
# A GIF counts hundredths of a second, and browsers slow down frames of less than two.
_SHORTEST_CENTISECONDS = 2


def write_gif(frames: Sequence[np.ndarray], path: str | os.PathLike[str], fps: int) -> Path:
    """Write frames [H, W, 3] of bytes as a GIF that plays at the episode's own speed, and return its path.

    If there are too many frames or bytes, it shows every second, third, ... frame for two, three, ... times as long.
    """
    path = Path(path)
    checked = [_checked(frame) for frame in frames]
    if not checked:
        raise EnvironmentFault(f"no frame was rendered for {path}; the environment must render rgb_array images")
    if any(frame.shape != checked[0].shape for frame in checked):
        raise EnvironmentFault("the environment rendered frames of different sizes; a video needs them all alike")
    fps = max(int(fps), 1)
    every = max(math.ceil(len(checked) / MOST_FRAMES), math.ceil(fps * _SHORTEST_CENTISECONDS / 100))
    while True:
        data = _encode(checked, every, fps)
        if len(data) <= MOST_BYTES or every >= len(checked):
            break
        every = max(every + 1, math.ceil(every * len(data) / MOST_BYTES))
    write_atomically(path, data)
    return path


def _checked(frame: Any) -> np.ndarray:
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or array.size == 0:
        raise EnvironmentFault(
            f"the environment rendered a frame of shape {array.shape} and type {array.dtype};"
            " a video needs [height, width, 3] of uint8 (render_mode rgb_array)"
        )
    return array


def _encode(frames: list[np.ndarray], every: int, fps: int) -> bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("writing a video", "video") from error

    # The last frame shows the end of the episode, so it is always included.
    indices = sorted({*range(0, len(frames), every), len(frames) - 1})
    # Durations are differences of rounded start times, so rounding errors do not add up.
    starts = [round(100 * index / fps) for index in indices] + [round(100 * len(frames) / fps)]
    durations = [10 * max(b - a, _SHORTEST_CENTISECONDS) for a, b in itertools.pairwise(starts)]
    # One palette for all frames, since still areas would flicker with one each.
    samples = [frames[i] for i in np.linspace(0, len(frames) - 1, min(len(frames), 8)).round().astype(int)]
    palette = Image.fromarray(np.concatenate(samples, axis=0)).quantize(256, dither=Image.Dither.NONE)
    images = [Image.fromarray(frames[i]).quantize(palette=palette, dither=Image.Dither.NONE) for i in indices]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=False)
    return file.getvalue()
