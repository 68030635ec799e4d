from __future__ import annotations

import json

from steppe.serve.play.route_scores import PlayScores, ScoredEpisode


def episode(route: str, score: float, version: str = "1") -> ScoredEpisode:
    return ScoredEpisode(0, score, int(score), route, route.upper(), version, 0.5, (0.001, 0.003))


def test_there_are_no_scores_before_the_first_episode() -> None:
    scores = PlayScores(10)
    assert (scores.mean_return, scores.mean_length, scores.latency(0.5), scores.routes) == (None, None, None, [])
    assert scores.to_json()["mean_return"] is None


def test_the_moving_mean_covers_100_episodes_and_the_summary_all() -> None:
    scores = PlayScores(200)
    for _ in range(100):
        scores.add(episode("a", 10))
    for _ in range(100):
        record = scores.add(episode("b", 20))
    assert record["mean_return"] == scores.mean_return == 20
    assert scores.to_json()["mean_return"] == 15
    assert (record["timestep"], record["episode"], record["latency_ms"]) == (3000, 200, 2.0)


def test_routes_are_listed_by_name_with_their_newest_version() -> None:
    scores = PlayScores(3)
    scores.add(episode("b", 5))
    scores.add(episode("a", 1, "1"))
    scores.add(episode("a", 3, "2"))
    a, b = scores.to_json()["routes"]
    assert (a["route"], a["policy"], a["version"], a["episodes"], a["mean_return"], a["best_return"]) == (
        *("a", "A", "2", 2, 2.0, 3),
    )
    assert (b["share"], b["timesteps"]) == (1 / 3, 5)
    json.dumps(scores.to_json(), allow_nan=False)
