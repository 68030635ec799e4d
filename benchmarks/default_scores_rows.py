"""The rows of `default_scores.py`: agents, environments, lengths of training, and the scores that must be reached."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """An agent with its defaults in an environment, and the bar for its score."""

    agent: str
    environment: str
    timesteps: int
    bar: float | None = None
    """The score that the median over the seeds must reach."""
    seeds_of_ten: int | None = None
    """If given, so many of ten seeds must reach the bar, instead of the median."""
    sets: tuple[str, ...] = ()
    """Settings that differ from the defaults, shown in the table."""

    def __str__(self) -> str:
        return f"{self.agent} {self.environment} {self.timesteps:,}"

    @property
    def name(self) -> str:
        """The environment and the settings that differ from the defaults."""
        return " ".join([self.environment, *(f"`--set {each}`" for each in self.sets)])

    @property
    def bar_shown(self) -> str:
        """The bar as the table shows it."""
        if self.bar is None:
            return ""
        return f"{self.bar:,g}" + (f" in {self.seeds_of_ten} of 10" if self.seeds_of_ten else "")

    def judged(self, scores: list[float]) -> str:
        """A sentence about whether these scores reach the bar."""
        if self.bar is None:
            return "no bar"
        reached = sum(score >= self.bar for score in scores)
        needed = self.seeds_of_ten
        is_met = reached * 10 >= needed * len(scores) if needed else median(scores) >= self.bar
        return f"bar {self.bar_shown} {'met' if is_met else 'NOT MET'}, {reached} of {len(scores)} reach it"


ROWS = (
    Row("ppo", "CartPole-v1", 100_000, 475),
    Row("ppo", "Acrobot-v1", 500_000, -90),
    Row("ppo", "Pendulum-v1", 200_000, -250),
    Row("ppo", "LunarLander-v3", 1_000_000, 200),
    Row("ppo", "HalfCheetah-v5", 1_000_000, 1_500),
    Row("ppo", "MiniGrid-DoorKey-5x5-v0", 200_000, 0.95),
    Row("ppo", "MountainCar-v0", 1_000_000),
    Row("dqn", "CartPole-v1", 100_000, 475),
    Row("dqn", "CartPole-v1", 500_000, 475, seeds_of_ten=8),
    Row("dqn", "MountainCar-v0", 120_000, -115),
    Row("dqn", "Acrobot-v1", 100_000, -85),
    Row("dqn", "LunarLander-v3", 200_000, 150),
    *(
        Row(agent, "CartPole-v1", 500_000, 475, seeds_of_ten=8)
        for agent in ("qr_dqn", "pqn", "a2c", "impala", "vpg", "trpo")
    ),
    *(Row(agent, "Pendulum-v1", 20_000, -160) for agent in ("sac", "td3", "ddpg", "naf")),
    Row("sac", "MountainCarContinuous-v0", 50_000, 90),
)
