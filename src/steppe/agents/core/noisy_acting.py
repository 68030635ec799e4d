"""What agents share whose noise may drift (apart from `noise`, which workers use without JAX)."""

from __future__ import annotations

from typing import Any

from steppe.agents._base import Agent, Internals
from steppe.agents.core.noise import drift, exploration_of, initial_noise
from steppe.specs.learning.exploration import Noise


class DriftingNoise(Agent[Any]):
    """What agents share that draw actions with noise which may drift from timestep to timestep."""

    action_size: int

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The drifting noise, where there is any."""
        return initial_noise(self.noise_process, lead, self.action_size)

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """As drawn, after the noise has drifted."""
        noise, internals = drift(self.noise_process, noise, internals, self.action_size, xp)
        actions, _ = super().choose(outputs, noise, timestep, internals, log_std, xp)
        return actions, internals


class ActsWithNoise(DriftingNoise):
    """What agents share whose actions are certain but for the noise that they explore with."""

    @property
    def noise_process(self) -> Noise | None:
        """As set."""
        exploration: Noise = self.settings.exploration
        return exploration

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """Anything goes until learning starts; then as set."""
        own = exploration_of(self.settings.exploration, timestep, xp)
        return own | {"epsilon": xp.where(timestep < self.settings.learning_starts, 1.0, own["epsilon"])}
