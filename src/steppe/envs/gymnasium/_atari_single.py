"""One Atari game that can be drawn, with the preprocessing of ale-py's vector environment in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from steppe.envs.gymnasium.atari import AtariSettings

FRAMES_PER_SECOND = 60
FIRE = 1


class SingleAtari(gymnasium.Env):
    """A whole game with its full score, without an end at lost lives and without clipped rewards: for videos."""

    def __init__(self, game: str, settings: AtariSettings, render_mode: str | None = None) -> None:
        import ale_py
        from ale_py.env import AtariEnv

        # Otherwise each game prints a banner.
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array", "human"],
            "render_fps": FRAMES_PER_SECOND / settings.frame_skip,
        }
        self._settings = settings
        self._game = AtariEnv(
            game,
            obs_type="grayscale" if settings.grayscale else "rgb",
            frameskip=1,
            repeat_action_probability=settings.repeat_action_probability,
            full_action_space=settings.full_action_space,
            render_mode=render_mode,
        )
        screen = self._game.observation_space.shape
        self._presses_fire = settings.fire_at_start and "FIRE" in self._game.get_action_meanings()
        self._frames = np.zeros((settings.frame_stack, settings.height, settings.width, *screen[2:]), np.uint8)
        shape = settings.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = self._game.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A new game, after FIRE and a random number of no-op frames."""
        super().reset(seed=seed)
        screen, info = self._game.reset(seed=seed)
        waiting = int(self.np_random.integers(max(1, self._settings.no_op_max)))
        for action in [FIRE] * self._presses_fire + [0] * (waiting - self._presses_fire):
            screen, _, terminated, truncated, info = self._game.step(action)
            if terminated or truncated:
                screen, info = self._game.reset()
        self._frames[:] = 0
        return self._observe(screen), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """The action for `frame_skip` frames."""
        score, before = 0.0, None
        for left in range(self._settings.frame_skip, 0, -1):
            screen, reward, terminated, truncated, info = self._game.step(action)
            score += float(reward)
            if terminated or truncated:
                break
            if left == 2 and self._settings.max_pool:
                before = screen
        seen = self._observe(screen if before is None else np.maximum(before, screen))
        return seen, score, terminated, truncated, info

    def render(self) -> Any:
        """The screen in full size and colour."""
        return self._game.render()

    def close(self) -> None:
        """Closes the game."""
        self._game.close()

    def _observe(self, screen: np.ndarray) -> np.ndarray:
        """The stacked frames, with the shrunk screen [height, width] or [height, width, 3] as the newest."""
        self._frames = np.roll(self._frames, -1, axis=0)
        size = (self._settings.height, self._settings.width)
        self._frames[-1] = screen if screen.shape[:2] == size else _shrunk(screen, size)
        if self._settings.grayscale:
            return self._frames.copy()
        return np.moveaxis(self._frames, 0, 2).reshape(self.observation_space.shape)


def _shrunk(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A picture [height, width, ...] at another size, each new pixel the mean of the area it covers."""
    rows = _means(picture.astype(np.float64), size[0])
    return np.rint(_means(rows.swapaxes(0, 1), size[1]).swapaxes(0, 1)).astype(np.uint8)


def _means(values: np.ndarray, parts: int) -> np.ndarray:
    """[parts, ...]: the mean over each of `parts` equal stretches of the first axis, which may cut through elements."""
    count = len(values)
    # By cumulative sums, interpolated within elements: a matrix product would start threads for so little work.
    sums = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    edges = np.linspace(0, count, parts + 1)
    whole = np.minimum(edges.astype(int), count - 1)
    inside = (edges - whole).reshape(-1, *[1] * (values.ndim - 1))
    return np.diff(sums[whole] + inside * values[whole], axis=0) * (parts / count)
