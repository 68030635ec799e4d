"""The interface of compiled environments, and the error for interrupted episodes of any environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from steppe.errors import EnvironmentFault
from steppe.specs._base import Count, Settings
from steppe.specs.spaces import Space

if TYPE_CHECKING:
    import numpy as np

State = Any
"""Any pytree of arrays; each environment has its own NamedTuple."""


class CompiledEnv(Settings):
    """One environment as pure functions that JAX can trace; its fields are its settings, so it is frozen and hashable.

    `step` neither resets nor counts timesteps: the caller (usually under `vmap`, inside a `scan`) does both.
    """

    id: ClassVar[str]

    max_episode_steps: Count | None = None
    """How many timesteps an episode may last before it is truncated."""

    @property
    def observation_space(self) -> Space:
        """The space of `observe`'s results."""
        raise NotImplementedError

    @property
    def action_space(self) -> Space:
        """The space of `step`'s actions."""
        raise NotImplementedError

    def reset(self, key: Any) -> State:
        """The initial state of an episode."""
        raise NotImplementedError

    def step(self, state: State, action: Any) -> tuple[State, Any, Any]:
        """(next state, reward float32 [], terminated bool []) after one action; action: [] or [size]."""
        raise NotImplementedError

    def observe(self, state: State) -> Any:
        """The agent's observation of a state, in `observation_space`."""
        raise NotImplementedError


class EpisodesCut(EnvironmentFault):
    """The environments were lost during a step, which was not taken, and have started new episodes since.

    A caller that continues must treat the previous timestep as truncated and act on `observations`, [N, ...], the first
    ones of the new episodes. For any other caller it is a fault as usual, so nobody learns from a step never taken.
    """

    def __init__(self, sentence: str, observations: np.ndarray) -> None:
        super().__init__(sentence)
        self.observations = observations
