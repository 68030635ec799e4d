"""Plays one episode and records its frames. Compiled environments are drawn by their gymnasium originals."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from steppe.envs.registry import extra_of_registration, has_compiled, make_compiled, plays_atari
from steppe.errors import MissingExtra, SteppeError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.running.connections import CONNECTIONS

Act = Callable[[np.ndarray], Any]
"""Maps one observation of the agent to its action."""

MAX_FPS = 30
MAX_SIDE = 400
MAX_FRAMES = 1000
MAX_SECONDS = 2.5
"""The time for drawing frames: without a GPU, those of a robot take a tenth of a second each."""
SHOWN_SECONDS = 8.0
"""The seconds of an episode to cover if frames are that slow, by drawing only some of them."""
MIN_FPS = 4
"""The least number of frames drawn for each second of the episode."""
SLOW = 0.03
"""The seconds from which on a frame counts as slow."""
JUDGED = 4
"""The number of frames after which their speed is judged."""
ROBOT_SIDE = 240
"""The default size of MuJoCo's frames: half of its own default takes half of the time."""


@dataclass(frozen=True)
class Recording:
    """One episode: its frames, each uint8 [height, width, 3], or the reason why there are none."""

    frames: list[np.ndarray] | None
    fps: int = 0
    episode_return: float = 0.0
    length: int = 0
    reason: str = ""


def record_episode(
    spec: EnvironmentSpec,
    act: Act,
    seed: int = 0,
    max_timesteps_per_episode: int | None = None,
    repeat_actions: int = 1,
) -> Recording:
    """Plays one episode. Large frames are shrunk and long episodes cut, to some tens of megabytes."""
    try:
        if has_compiled(spec.id) and not _has_original(spec.id):
            return _record_compiled(spec, act, seed, max_timesteps_per_episode, repeat_actions)
        with warnings.catch_warnings():
            # Packages such as pygame warn about their own dependencies, which the user cannot change.
            warnings.simplefilter("ignore")
            return _record_gymnasium(spec, act, seed, max_timesteps_per_episode, repeat_actions)
    except SteppeError as error:
        return Recording(None, reason=str(error))


def _has_original(id: str) -> bool:
    import gymnasium

    return id in gymnasium.registry


def draw_off_screen() -> None:
    """Makes environments draw without a screen if there is none."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _record_gymnasium(spec: EnvironmentSpec, act: Act, seed: int, limit: int | None, repeat: int) -> Recording:
    from steppe.envs.gymnasium._sync import describe
    from steppe.envs.gymnasium.factory import make_env
    from steppe.envs.spaces import zeros

    draw_off_screen()
    env, own_limit = make_env(_with_small_frames(spec), render_mode="rgb_array")
    try:
        description, write, to_env = describe(spec, env, own_limit, limit)
        film = _Film(int(env.metadata.get("render_fps") or 30))
        row = zeros(description.observation_space, 1)
        obs, _ = env.reset(seed=seed)
        reason = film.add(env.render)
        total, length, ended = 0.0, 0, False
        while not reason and not ended and not film.is_full:
            write(obs, row, 0)
            # A copy, since the agent may keep the observation.
            action = to_env(np.asarray(act(row[0].copy()))[None])[0]
            for _ in range(repeat):
                obs, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                reason = reason or film.add(env.render)
                if ended := bool(terminated or truncated):
                    break
            length += 1
            ended = ended or length == description.limit
    except SteppeError:
        raise
    except NotImplementedError:
        reason = f'environment "{spec.id}" cannot be shown: it has no "render" of its own'
    except Exception as error:
        from steppe.envs.registry import extra_of_error

        if (extra := extra_of_error(error)) is not None:
            raise MissingExtra(f'showing environment "{spec.id}"', extra) from error
        said = f": {error}" if str(error) else ""
        reason = f'environment "{spec.id}" cannot be shown: it raised {type(error).__name__}{said}'
    finally:
        with contextlib.suppress(Exception):
            env.close()
    if reason:
        return Recording(None, reason=reason)
    return Recording(film.frames, film.fps, total, length)


def _with_small_frames(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec with small frames of a robot, unless their size is given."""
    if ":" in spec.id or plays_atari(spec) or spec.id in CONNECTIONS:
        return spec
    from steppe.envs.gymnasium.factory import find_spec

    if extra_of_registration(find_spec(spec.id)) != "mujoco":
        return spec
    size = {"width": ROBOT_SIDE, "height": ROBOT_SIDE}
    return spec.model_copy(update={"settings": size | spec.settings})


def _record_compiled(spec: EnvironmentSpec, act: Act, seed: int, limit: int | None, repeat: int) -> Recording:
    """Records a compiled environment without an original, which draws itself."""
    import jax

    env = make_compiled(spec)
    render = getattr(env, "render", None)
    if render is None:
        return Recording(None, reason=f'environment "{spec.id}" cannot be shown: it has no pictures')
    limit = min(number for number in (limit, env.max_episode_steps, MAX_FRAMES) if number is not None)
    step, observe = jax.jit(env.step), jax.jit(env.observe)
    film = _Film(8)
    state = jax.jit(env.reset)(jax.random.key(seed))
    film.add(partial(render, state))
    total, length, ended = 0.0, 0, False
    while not ended and length < limit and not film.is_full:
        action = np.asarray(act(np.asarray(observe(state))))
        for _ in range(repeat):
            state, reward, terminated = step(state, action)
            total += float(reward)
            film.add(partial(render, state))
            if ended := bool(terminated):
                break
        length += 1
    return Recording(film.frames, film.fps, total, length)


class _Film:
    """Frames of at most MAX_FPS and MAX_SIDE, as many as can be drawn within MAX_SECONDS."""

    def __init__(self, fps: int) -> None:
        self._rate = fps
        self._every = -(-fps // MAX_FPS)
        self._shown = 0
        self._each: list[float] = []
        self.fps = max(1, fps // self._every)
        self.frames: list[np.ndarray] = []

    @property
    def is_full(self) -> bool:
        return len(self.frames) >= MAX_FRAMES or sum(self._each) >= MAX_SECONDS

    def add(self, draw: Callable[[], Any]) -> str:
        """Draws and keeps a frame if it is due; returns the reason if that is impossible, else nothing."""
        self._shown += 1
        if (self._shown - 1) % self._every or self.is_full:
            return ""
        began = time.perf_counter()
        picture = draw()
        self._each.append(time.perf_counter() - began)
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] not in (3, 4):
            return f"the environment does not draw pictures (it returned {type(picture).__name__})"
        if picture.dtype != np.uint8:
            return f"the environment draws pictures of {picture.dtype} where bytes are needed"
        self.frames.append(_shrink(picture[..., :3]))
        if len(self._each) == JUDGED:
            # The first frame includes the preparation, and any other can be delayed.
            self._thin_out(min(self._each[1:]))
        return ""

    def _thin_out(self, seconds: float) -> None:
        """Draws fewer frames from now on if they are so slow that they would show the beginning only."""
        affordable = max(MIN_FPS, MAX_SECONDS / (SHOWN_SECONDS * max(seconds, 1e-6)))
        every = math.ceil(self._rate / affordable)
        if seconds >= SLOW and every > self._every:
            drawn = range(0, self._shown, self._every)
            self.frames = [frame for index, frame in zip(drawn, self.frames, strict=True) if not index % every]
            self._every = every
            self.fps = max(1, self._rate // every)


def _shrink(picture: np.ndarray) -> np.ndarray:
    """The frame with no side above MAX_SIDE, each pixel the mean of a square of pixels."""
    factor = -(-max(picture.shape[:2]) // MAX_SIDE)
    height, width = (side // factor for side in picture.shape[:2])
    if factor == 1:
        # A copy: an environment may draw into the same array again.
        return picture.copy()
    # Sums of strided views are many times faster than NumPy's mean over short axes.
    total = np.zeros((height, width, 3), np.uint32)
    for row, column in np.ndindex(factor, factor):
        total += picture[row : height * factor : factor, column : width * factor : factor]
    return (total // factor**2).astype(np.uint8)
