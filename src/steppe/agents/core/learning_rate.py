"""A learning rate that may fall while training. Parameter servers use it without JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from steppe.errors import UserError

if TYPE_CHECKING:
    from optax import ScalarOrSchedule

Decay = Literal["none", "linear", "exponential", "cosine"]


@dataclass(frozen=True)
class LearningRate:
    """From `start` to `end` in `total_updates` updates."""

    start: Any
    end: Any = 0.0
    decay: Decay = "none"
    total_updates: int | None = None

    @classmethod
    def of(cls, settings: Any, total_updates: int | None, start: float) -> LearningRate:
        """The learning rate of `OptimizerSettings`; with another `start` it falls in the same proportion."""
        decay = settings.learning_rate_decay
        if decay != "none" and total_updates is None:
            raise UserError(f'learning_rate_decay "{decay}" needs total_timesteps, to know when it ends')
        end = 0.0 if decay == "none" else settings.final_learning_rate * start / settings.learning_rate
        return cls(start, end, decay, total_updates)

    def on_host(self) -> float | Callable[[Any], float]:
        """A number, or a function of the number of updates taken."""
        return self.start if self.decay == "none" else self._at

    def schedule(self) -> ScalarOrSchedule:
        """The same for optax, inside a compiled program."""
        if self.decay == "none":
            return self.start
        import optax

        start, end, total = self.start, self.end, self.total_updates
        assert total is not None
        match self.decay:
            case "linear":
                return optax.linear_schedule(start, end, total)
            case "exponential":
                return optax.exponential_decay(start, total, end / start, end_value=end)
            case _:
                return optax.cosine_decay_schedule(start, total, alpha=end / start)

    def _at(self, taken: Any) -> float:
        assert self.total_updates is not None
        start, end, passed = self.start, self.end, min(taken / self.total_updates, 1.0)
        match self.decay:
            case "linear":
                return start + passed * (end - start)
            case "exponential":
                return start * (end / start) ** passed
            case _:
                return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * passed))
