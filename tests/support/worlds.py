"""Small gymnasium environments with every kind of observation and action: `worlds:Pictures` and so on."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
from gymnasium import spaces


class World(gymnasium.Env):
    """Ends after ten steps; the reward is 1 if the action is the one that the observation shows, else 0."""

    observation_space: spaces.Space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action):
        reward = self._reward(action)
        self._steps += 1
        return self._observation(), reward, self._steps == 10, False, {}

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return np.full(3, 2 * self._wanted - 1, np.float32)

    def _reward(self, action):
        return float(action == self._wanted)


class Pictures(World):
    """Shows a bright or a dark picture."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return np.full((12, 12, 3), 255 * self._wanted, np.uint8)


class GreyPictures(World):
    """Shows a bright or a dark picture without an axis for colours."""

    observation_space = spaces.Box(0, 255, (12, 12), np.uint8)

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return np.full((12, 12), 255 * self._wanted, np.uint8)


class Board(World):
    """Shows numbers on a board of four by four, as in the game 2048, each in one of sixteen channels."""

    observation_space = spaces.Box(0.0, 1.0, (4, 4, 16), np.float32)

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return np.full((4, 4, 16), self._wanted, np.float32)


class Tokens(World):
    """Shows four equal tokens out of five."""

    observation_space = spaces.MultiDiscrete([5, 5, 5, 5])

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return np.full(4, self._wanted, np.int64)


class Dictionary(World):
    """Shows a dictionary with the wanted action among other entries."""

    observation_space = spaces.Dict(
        {"noise": spaces.Box(-1, 1, (2,), np.float32), "wanted": spaces.Discrete(2), "more": spaces.MultiBinary(2)}
    )

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return {"noise": np.zeros(2, np.float32), "wanted": self._wanted, "more": np.zeros(2, np.int8)}


class Several(World):
    """Takes three choices at once, each of which counts for the reward."""

    action_space = spaces.MultiDiscrete([2, 3, 2])

    def _reward(self, action):
        return float(action[0] == self._wanted) + float(action[1] == 2) + float(action[2] == 0)


class Continuous(World):
    """Takes two numbers; the reward is minus their distance from the wanted number."""

    action_space = spaces.Box(-2.0, 2.0, (1, 2), np.float32)

    def _reward(self, action):
        assert action.shape == (1, 2)
        return -float(np.abs(action - (2 * self._wanted - 1)).sum())


class Shifted(World):
    """Counts actions from 5 and observations from 3."""

    observation_space = spaces.Discrete(2, start=3)
    action_space = spaces.Discrete(2, start=5)

    def _observation(self):
        self._wanted = int(self.np_random.integers(2))
        return 3 + self._wanted

    def _reward(self, action):
        assert action in (5, 6)
        return float(action - 5 == self._wanted)


class Flags(World):
    """Takes three binary actions: right are the wanted one, its opposite, and 1."""

    action_space = spaces.MultiBinary(3)

    def _reward(self, action):
        return float(action[0] == self._wanted) + float(action[1] != self._wanted) + float(action[2] == 1)


class Recalled(World):
    """Shows the action that is wanted for a whole episode in its first observation only."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._wanted = int(self.np_random.integers(2))
        return np.full(3, 2 * self._wanted - 1, np.float32), {}

    def _observation(self):
        return np.zeros(3, np.float32)


MAY_ANSWER = threading.Event()
"""Set to let `hanging` environments answer."""


class Hanging(gymnasium.Wrapper):
    """Does not answer a step until MAY_ANSWER is set."""

    def step(self, action):
        MAY_ANSWER.wait()
        return super().step(action)


def hanging():
    """A CartPole-v1 that hangs."""
    return Hanging(gymnasium.make("CartPole-v1"))
