"""What has been played through an endpoint: scores by route, speed, latency."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

WINDOW = 100
"""How many episodes a mean return is of, once there are so many."""
LATENCIES = 10_000
"""How many of the last answers the quantiles are of."""


class PlayedEpisode(NamedTuple):
    """One whole episode that was played."""

    runner: int
    score: float
    length: int
    route: str
    """As people read it, such as `router=1`; the policy's name where nothing was chosen."""
    policy: str
    version: str
    propensity: float | None
    latencies: tuple[float, ...]
    """Seconds each answer took."""


@dataclass
class RouteScores:
    """The scores of one route."""

    name: str
    policy: str
    version: str
    """Of its last episode."""
    episodes: int = 0
    timesteps: int = 0
    total: float = 0.0
    best: float = float("-inf")
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def mean_return(self) -> float:
        """Of all its episodes."""
        return self.total / self.episodes

    def add(self, episode: PlayedEpisode) -> None:
        """Takes in one more."""
        self.policy, self.version = episode.policy, episode.version
        self.episodes += 1
        self.timesteps += episode.length
        self.total += episode.score
        self.best = max(self.best, episode.score)
        self.recent.append(episode.score)


class PlayScores:
    """The scores of all routes; owned by one thread."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        """How many episodes are to be played."""
        self.episodes = self.timesteps = self.abandoned = 0
        self.total = 0.0
        self._routes: dict[str, RouteScores] = {}
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._began = time.monotonic()

    @property
    def routes(self) -> list[RouteScores]:
        """By name."""
        return [self._routes[name] for name in sorted(self._routes)]

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes."""
        return float(np.mean(self._returns)) if self._returns else None

    @property
    def mean_length(self) -> float | None:
        """Of the last 100 episodes."""
        return float(np.mean(self._lengths)) if self._lengths else None

    def add(self, episode: PlayedEpisode) -> dict[str, Any]:
        """Takes in one more; its record for metrics.jsonl."""
        self.episodes += 1
        self.timesteps += episode.length
        self.total += episode.score
        self._returns.append(episode.score)
        self._lengths.append(episode.length)
        self._latencies.extend(episode.latencies)
        route = self._routes.setdefault(episode.route, RouteScores(episode.route, episode.policy, episode.version))
        route.add(episode)
        return {
            "timestep": self.timesteps,
            "episode": self.episodes,
            "worker": episode.runner,
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
            "steps_per_second": self.timesteps / max(self.seconds, 1e-9),
            "episode_return": episode.score,
            "episode_length": episode.length,
            "route": episode.route,
            "policy": episode.policy,
            "version": episode.version,
            "propensity": episode.propensity,
            "latency_ms": 1000 * float(np.mean(episode.latencies)) if episode.latencies else None,
        }

    def latency(self, quantile: float) -> float | None:
        """Seconds within which this share of the last answers came."""
        return float(np.quantile(self._latencies, quantile)) if self._latencies else None

    def to_json(self) -> dict[str, Any]:
        """The summary, for programs."""
        return {
            "episodes": self.episodes,
            "timesteps": self.timesteps,
            "abandoned": self.abandoned,
            "seconds": self.seconds,
            "mean_return": self.total / self.episodes if self.episodes else None,
            "latency_seconds": {"p50": self.latency(0.5), "p99": self.latency(0.99)},
            "routes": [
                {
                    "route": route.name,
                    "policy": route.policy,
                    "version": route.version,
                    "episodes": route.episodes,
                    "share": route.episodes / self.episodes,
                    "timesteps": route.timesteps,
                    "mean_return": route.mean_return,
                    "recent_return": float(np.mean(route.recent)),
                    "best_return": route.best,
                }
                for route in self.routes
            ],
        }
