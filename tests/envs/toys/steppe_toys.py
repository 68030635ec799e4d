"""Small environments with known numbers, for the tests of gymnasium environments."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Counter(gymnasium.Env):
    """Observes (steps in this episode, episodes so far); rewards the action; ends after `length` steps."""

    def __init__(self, length: int = 3, end: str = "terminated", fault: str = "", at: int = 2, start: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(5, start=start)
        self.length, self.end, self.fault, self.at = length, end, fault, at
        self.episode = self.total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        if self.fault == "reset" and self.episode == 2:
            raise RuntimeError("cannot start again")
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps, self.total = self.steps + 1, self.total + 1
        obs, reward = self._observe(), float(action)
        if self.total == self.at:
            if self.fault == "raise":
                raise RuntimeError("the engine is on fire")
            if self.fault == "exit":
                os._exit(7)
            if self.fault in ("nan", "inf"):
                obs[1] = float(self.fault)
            if self.fault == "reward":
                reward = float("nan")
            if self.fault == "shape":
                obs = obs[:1]
        ended = self.steps >= self.length
        return obs, reward, ended and "terminated" in self.end, ended and "truncated" in self.end, {}

    def _observe(self):
        return np.array([self.steps, self.episode], np.float32)


class Uneven(Counter):
    """Number 3, identified by its seed, fails in its second step."""

    def reset(self, *, seed=None, options=None):
        self.fault = "raise" if seed == 3 else self.fault
        return super().reset(seed=seed)


class Huge(Counter):
    """Observes numbers whose squares float32 cannot hold."""

    def _observe(self):
        return np.array([1e31, 2e31], np.float32)


class Silent(Counter):
    """Accepts render_mode but has no pictures."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def render(self):
        return None


class Undrawn(Counter):
    """Accepts render_mode but does not implement render."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()


class Painter(Counter):
    """Draws into one array again and again; with a `fault`, something that is no picture or nothing at all."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None, fault: str = "") -> None:
        super().__init__(fault=fault)
        self.canvas = np.zeros((8, 8, 3), np.float32 if fault == "floats" else np.uint8)

    def render(self):
        if self.fault == "render":
            raise RuntimeError("the canvas is torn")
        self.canvas[:] = 10 * self.steps
        return self.canvas

    def close(self):
        if self.fault:
            raise RuntimeError("cannot stop painting")


class Imports(gymnasium.Env):
    """Observes whether JAX has been loaded in its process."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array(["jax" in sys.modules], np.float32), {}


class Broken(gymnasium.Env):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ZeroDivisionError("no wheels")


class Mixed(gymnasium.Env):
    """Observes a nested Dict, takes MultiDiscrete actions, and keeps them."""

    def __init__(self, actions: str = "multi_discrete") -> None:
        self.observation_space = spaces.Dict(
            {
                "speed": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
                "gear": spaces.Discrete(3, start=1),
                "inner": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
            }
        )
        self.action_space = {
            "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "multi_binary": spaces.MultiBinary(3),
            "box": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64),
            "whole": spaces.Box(0, 9, (2, 3), np.int64),
        }[actions]
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seen = self.observation_space.sample()
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.given.append(action)
        self.seen = self.observation_space.sample()
        return self.seen, 0.0, False, False, {}


class Choices(gymnasium.Env):
    """Observes several choices, in its second step one that does not exist."""

    def __init__(self, wrong: int = 3) -> None:
        self.observation_space = spaces.MultiDiscrete([2, 3])
        self.action_space = spaces.Discrete(2)
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.array([1, 2]), {}

    def step(self, action):
        self.steps += 1
        return np.array([1, self.wrong if self.steps == 2 else 2]), 0.0, False, False, {}


class Seeded(gymnasium.Env):
    """Observes random numbers of its own generator and one of its action space's."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.array([self.np_random.random(), self.action_space.sample()[0]], np.float32)


class Texts(gymnasium.Env):
    """Observes text, which no agent can learn from."""

    observation_space = spaces.Dict({"note": spaces.Text(5)})
    action_space = spaces.Discrete(2)


class Labelled(gymnasium.ObservationWrapper):
    """The counter's numbers with a word beside them."""

    def __init__(self) -> None:
        super().__init__(Counter())
        self.observation_space = spaces.Dict({"label": spaces.Text(5), "numbers": self.env.observation_space})

    def observation(self, observation):
        return {"label": "word", "numbers": observation}


class Times(gymnasium.RewardWrapper):
    """Multiplies the reward."""

    def __init__(self, env, factor: float) -> None:
        super().__init__(env)
        self.factor = 1 / (1 / factor)

    def reward(self, reward):
        return reward * self.factor


def wrap_into_nothing(env):
    return "nothing"


class Pairs(gymnasium.Env):
    """Takes a Dict of actions, which no agent supports."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


class Native(VectorEnv):
    """The counter as a vectorised environment that resets in the step in which an episode ends."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int, max_episode_steps: int, lengths: list[int]) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = spaces.Discrete(5)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.lengths, self.limit = np.array(lengths), max_episode_steps

    def reset(self, *, seed=None, options=None):
        self.steps, self.episodes = np.zeros(self.num_envs), np.ones(self.num_envs)
        return self._observe(), {}

    def step(self, actions):
        self.steps += 1
        terminated, truncated = self.steps >= self.lengths, self.steps >= self.limit
        ended = terminated | truncated
        final = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(ended):
            final[i] = self._observe()[i]
        self.steps[ended] = 0
        self.episodes[ended] += 1
        return self._observe(), actions.astype(np.float64), terminated, truncated, {"final_obs": final}

    def _observe(self):
        return np.stack([self.steps, self.episodes], axis=1).astype(np.float32)


def make_counter(**settings):
    return Counter(**settings)


def make_limited():
    return gymnasium.make("SteppeCounter-v0", max_episode_steps=2000, length=9999)


def make_nothing():
    return "not an environment"


def make_without_package():
    import a_package_that_nobody_has  # noqa: F401


gymnasium.register(
    "SteppeCounter-v0",
    entry_point="steppe_toys:Counter",
    vector_entry_point="steppe_toys:Native",
    max_episode_steps=4,
)
