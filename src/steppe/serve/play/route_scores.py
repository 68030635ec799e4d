"""Scores of episodes played through an endpoint: by route, with speed and latency."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

WINDOW = 100
"""Number of episodes in a moving mean."""
LATENCIES = 10_000
"""Number of recent answers in the latency quantiles."""


class ScoredEpisode(NamedTuple):
    """One complete episode."""

    runner: int
    score: float
    length: int
    route: str
    """The route as text, such as `router=1`; the policy's name if nothing was chosen."""
    policy: str
    version: str
    propensity: float | None
    latencies: tuple[float, ...]
    """Seconds of each answer."""


@dataclass
class RouteScores:
    """The scores of one route."""

    name: str
    policy: str
    version: str
    """The version in its last episode."""
    episodes: int = 0
    timesteps: int = 0
    total: float = 0.0
    best: float = float("-inf")
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def mean_return(self) -> float:
        """Mean of all its episodes."""
        return self.total / self.episodes

    def add(self, episode: ScoredEpisode) -> None:
        """Adds an episode."""
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
        """All routes, by name."""
        return [self._routes[name] for name in sorted(self._routes)]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def mean_return(self) -> float | None:
        """Mean of the last 100 episodes."""
        return float(np.mean(self._returns)) if self._returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean of the last 100 episodes."""
        return float(np.mean(self._lengths)) if self._lengths else None

    def add(self, episode: ScoredEpisode) -> dict[str, Any]:
        """Adds an episode; returns its record for metrics.jsonl."""
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
        """The quantile of recent answer times, in seconds."""
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
