"""The smallest problem for an agent: TensorForce's `minimal_test`."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CHOICES = ("bool", "int")
NUMBERS = ("float", "bounded")
ENDING = 0.25
"""The probability that a step ends the episode."""


class MinimalTest(gymnasium.Env):
    """A pair of numbers for each kind of action, initially (1, 0); correct actions move it to (0, 1) and are rewarded.

    `specification` names the kinds of action, each with its shape: "bool" and "int" are choices of 0 or 1, of which 1
    is correct; "float" and "bounded" (from -0.5 to 1.5) are numbers that are added to the second of the pair.
    """

    def __init__(self, specification: dict[str, Any] | None = None) -> None:
        kinds = {"int": ()} if specification is None else specification
        if not isinstance(kinds, dict):
            raise TypeError(
                'specification must be an object with the shape of each kind of action, such as {"int": []}'
            )
        if not kinds or not set(kinds) <= {*CHOICES, *NUMBERS}:
            raise TypeError("specification must have some of bool, int, float and bounded, each with its shape")
        if set(kinds) & set(CHOICES) and set(kinds) & set(NUMBERS):
            raise TypeError("specification must have choices (bool, int) or numbers (float, bounded), not both at once")
        self._sizes = {kind: math.prod(np.atleast_1d(shape).tolist()) for kind, shape in kinds.items()}
        self.observation_space = spaces.Box(0.0, 1.0, (2 * len(kinds),), np.float32)
        total = sum(self._sizes.values())
        if set(kinds) <= set(CHOICES):
            self.action_space: spaces.Space = spaces.Discrete(2) if total == 1 else spaces.MultiDiscrete([2] * total)
        else:
            low, high = (
                np.concatenate([np.full(size, bounds.get(kind, far)) for kind, size in self._sizes.items()])
                for bounds, far in (({"bounded": -0.5}, -np.inf), ({"bounded": 1.5}, np.inf))
            )
            self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Sets every pair to (1, 0)."""
        super().reset(seed=seed)
        self._reached = np.zeros(len(self._sizes))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """The reward is the pairs' mean distance from (1, 0): 1 if all actions are correct."""
        parts = np.split(np.reshape(action, -1).astype(float), np.cumsum(list(self._sizes.values()))[:-1])
        means = np.array([part.mean() for part in parts])
        is_choice = np.array([kind in CHOICES for kind in self._sizes])
        self._reached = np.clip(np.where(is_choice, means, self._reached + means), 0.0, 1.0)
        return self._observe(), float(self._reached.mean()), bool(self.np_random.random() < ENDING), False, {}

    def _observe(self) -> np.ndarray:
        return np.stack([1.0 - self._reached, self._reached], axis=1).reshape(-1).astype(np.float32)
