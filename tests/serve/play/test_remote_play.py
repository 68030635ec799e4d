from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from endpoints import serve
from processes import Steppe, wait_until
from scripted_http import HANG_UP, Heard, Say, answering

from policies import tensors_for
from steppe.errors import SteppeError, UserError
from steppe.policies.policy import Policy, load_policy
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.play.episodes import play as play_here
from steppe.serve.clients import EndpointAccess
from steppe.serve.play.remote_play import PlayPlan, PlayResult, play
from steppe.serve.play.route_scores import PlayScores
from steppe.specs.environment import EnvironmentSpec
from steppe.tracking.metrics import read_metrics


class Endpoint:
    """Answers like Steppe's own server: two branches, taken in turn by episode, and rewards counted once."""

    def __init__(self, name: str = "steppe", size: int = 4) -> None:
        self.name, self.size = name, size
        self.lock = threading.Lock()
        self.routes: dict[str, int] = {}
        self.questions: list[dict[str, Any]] = []
        self.feedback: list[dict[str, Any]] = []
        self.counted: dict[str, float] = {}

    def __call__(self, heard: Heard) -> Any:
        with self.lock:
            match heard.method, heard.path:
                case "GET", "/v2":
                    return {"name": self.name, "extensions": []}
                case "POST", "/v2/repository/index":
                    return [{"name": "cartpole"}]
                case "GET", "/v2/models/cartpole":
                    return {
                        "inputs": [{"name": "observation", "datatype": "FP32", "shape": [-1, self.size]}],
                        "outputs": [{"name": "action", "datatype": "INT32", "shape": [-1]}],
                    }
                case "POST", "/v2/models/cartpole/infer":
                    return self.answer(heard.data)
                case "POST", "/v2/models/cartpole/feedback":
                    return self.reward(heard.data)
        return Say({"error": "no such path"}, 404)

    def answer(self, question: dict[str, Any]) -> Any:
        self.questions.append(question)
        branch = self.routes.setdefault(question["parameters"]["sequence_id"], len(self.routes) % 2)
        angle, speed = question["inputs"][0]["data"][2:4]
        # The first branch balances for a while, the second only pushes to the right.
        action = int(angle + 0.5 * speed > 0) if branch == 0 else 1
        return {
            "model_name": "cartpole",
            "model_version": "7",
            "id": question["id"],
            "parameters": {"route": f"router={branch}", "policy": "ab"[branch], "propensity": 0.5},
            "outputs": [{"name": "action", "datatype": "INT32", "shape": [1], "data": [action]}],
        }

    def reward(self, feedback: dict[str, Any]) -> Any:
        self.feedback.append(feedback)
        is_new = feedback["feedback_id"] not in self.counted
        self.counted.setdefault(feedback["feedback_id"], feedback["reward"])
        return {"applied": is_new}


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


def run(endpoint: Any, folder: Path, **plan: Any) -> PlayResult:
    settings = {"environment": EnvironmentSpec(id="CartPole-v1"), "episodes": 6, "max_timesteps": 30, "patience": 20.0}
    with answering(endpoint) as url:
        return play(PlayPlan(**(settings | plan)), "v2", EndpointAccess(url, timeout=20), folder)


def test_every_episode_is_played_once_and_recorded(endpoint: Endpoint, tmp_path: Path) -> None:
    played = run(endpoint, tmp_path, runners=3)
    records = read_metrics(tmp_path)
    assert [record["episode"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert {record["worker"] for record in records} <= {0, 1, 2}
    assert len(endpoint.routes) == 6
    assert played.scores.episodes == 6
    assert records[-1]["timestep"] == played.scores.timesteps == len(endpoint.questions)
    for record in records:
        assert record["episode_return"] == record["episode_length"]
        assert (record["route"], record["policy"]) in {("router=0", "a"), ("router=1", "b")}
        assert (record["version"], record["propensity"]) == ("7", 0.5)
    assert records[-1]["mean_return"] == sum(record["episode_return"] for record in records) / 6
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_limit_beyond_the_environments_own_is_noted_before_playing(endpoint: Endpoint, tmp_path: Path) -> None:
    told: list[str] = []
    with answering(endpoint) as url:
        plan = PlayPlan(EnvironmentSpec(id="CartPole-v1"), 1, max_timesteps=7000, patience=20.0)
        play(plan, "v2", EndpointAccess(url, timeout=20), tmp_path, tell=told.append)
    (sentence,) = told
    assert sentence.startswith("note: max_timesteps_per_episode 7,000 has no effect")


def test_scores_are_kept_by_route(endpoint: Endpoint, tmp_path: Path) -> None:
    played = run(endpoint, tmp_path)
    summary = played.scores.to_json()
    assert [(each["route"], each["policy"], each["episodes"]) for each in summary["routes"]] == [
        ("router=0", "a", 3),
        ("router=1", "b", 3),
    ]
    good, bad = (each["mean_return"] for each in summary["routes"])
    assert good == 30 > bad
    assert summary["latency_seconds"]["p50"] > 0
    json.dumps(summary)


def test_questions_name_their_episode_and_its_start(endpoint: Endpoint, tmp_path: Path) -> None:
    run(endpoint, tmp_path, runners=2)
    starts = Counter(
        question["parameters"]["sequence_id"]
        for question in endpoint.questions
        if question["parameters"]["sequence_start"]
    )
    assert set(starts.values()) == {1}
    assert len(starts) == 6
    ids = [question["id"] for question in endpoint.questions]
    assert len(set(ids)) == len(ids)
    assert "deterministic" not in endpoint.questions[0]["parameters"]


def test_an_episode_is_rewarded_with_its_return(endpoint: Endpoint, tmp_path: Path) -> None:
    run(endpoint, tmp_path, runners=2)
    lengths = Counter(question["parameters"]["sequence_id"] for question in endpoint.questions)
    assert {each["sequence_id"]: each["reward"] for each in endpoint.feedback} == lengths
    assert all(each["sequence_end"] for each in endpoint.feedback)


def test_each_step_can_be_rewarded_instead(endpoint: Endpoint, tmp_path: Path) -> None:
    run(endpoint, tmp_path, feedback="step", episodes=2)
    assert [each["reward"] for each in endpoint.feedback] == [1.0] * len(endpoint.questions)
    assert [each["id"] for each in endpoint.feedback] == [question["id"] for question in endpoint.questions]
    assert sum("sequence_end" in each for each in endpoint.feedback) == 2
    assert len(endpoint.counted) == len(endpoint.feedback)


def test_feedback_can_be_turned_off(endpoint: Endpoint, tmp_path: Path) -> None:
    run(endpoint, tmp_path, feedback="none", deterministic=False, episodes=1)
    assert endpoint.feedback == []
    assert endpoint.questions[0]["parameters"]["deterministic"] is False


def test_a_server_without_feedback_is_sent_none(tmp_path: Path) -> None:
    endpoint = Endpoint("another")
    played = run(endpoint, tmp_path, episodes=2)
    assert endpoint.feedback == []
    assert not played.described.takes_feedback


def test_the_same_seed_plays_the_same_episodes(tmp_path: Path) -> None:
    lengths = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(Endpoint(), tmp_path / name, seed=seed, max_timesteps=200)
        lengths.append([record["episode_length"] for record in read_metrics(tmp_path / name)])
    assert lengths[0] == lengths[1] != lengths[2]


def test_an_endpoint_with_other_observations_is_refused_before_playing(tmp_path: Path) -> None:
    endpoint = Endpoint(size=6)
    with pytest.raises(UserError, match=r"takes observations of shape \(6,\), but CartPole-v1 shows \(4,\)"):
        run(endpoint, tmp_path)
    assert endpoint.questions == []


def test_episodes_need_a_time_limit(tmp_path: Path) -> None:
    endless = EnvironmentSpec(id="CartPole-v1", settings={"max_episode_steps": -1})
    with pytest.raises(UserError, match="have no time limit; set one by --max-timesteps-per-episode"):
        run(Endpoint(), tmp_path, environment=endless, max_timesteps=None)


class Shaky(Endpoint):
    """Disconnects after every third question and every second feedback, once it has counted them."""

    def __call__(self, heard: Heard) -> Any:
        said = super().__call__(heard)
        broke = (heard.path.endswith("infer") and len(self.questions) % 3 == 0) or (
            heard.path.endswith("feedback") and len(self.feedback) % 2 == 0
        )
        return HANG_UP if broke else said


def test_lost_connections_lose_no_reward_and_count_none_twice(tmp_path: Path) -> None:
    endpoint = Shaky()
    told: list[str] = []
    with answering(endpoint) as url:
        plan = PlayPlan(EnvironmentSpec(id="CartPole-v1"), 4, 2, max_timesteps=30, patience=20.0)
        played = play(plan, "v2", EndpointAccess(url), tmp_path, tell=told.append)
    assert played.uncounted == 0
    assert played.tries > 0
    assert len(endpoint.feedback) > len(endpoint.counted) == 4
    returns = sorted(record["episode_return"] for record in read_metrics(tmp_path))
    assert sorted(endpoint.counted.values()) == returns
    assert "is away" in told[0]


def test_an_endpoint_that_stays_away_ends_play_with_one_sentence(tmp_path: Path) -> None:
    endpoint, before = Endpoint(), threading.active_count()

    def leaving(heard: Heard) -> Any:
        return Say({"error": "it is ending"}, 503) if len(endpoint.questions) > 20 else endpoint(heard)

    with pytest.raises(SteppeError, match=r"was away for 0\.05 s \(it is ending\)"):
        run(leaving, tmp_path, patience=0.05, runners=2)
    wait_until(lambda: threading.active_count() <= before, "no runner is left")


def test_an_error_in_one_runner_ends_all(tmp_path: Path) -> None:
    endpoint = Endpoint()

    def refusing(heard: Heard) -> Any:
        return Say({"error": "no more"}, 400) if len(endpoint.questions) > 20 else endpoint(heard)

    with pytest.raises(UserError, match="refused what it was sent: no more"):
        run(refusing, tmp_path, runners=3, episodes=50)


def test_ctrl_c_keeps_finished_episodes_and_rewards_no_others(endpoint: Endpoint, tmp_path: Path) -> None:
    presses = iter([signal.SIGINT])

    def press(scores: PlayScores) -> None:
        if scores.episodes == 3 and (number := next(presses, None)) is not None:
            signal.raise_signal(number)

    with answering(endpoint) as url:
        plan = PlayPlan(EnvironmentSpec(id="CartPole-v1"), 1000, 2, max_timesteps=30)
        played = play(plan, "v2", EndpointAccess(url), tmp_path, show=press)
    assert played.was_stopped
    assert 3 <= played.scores.episodes < 1000
    assert len(read_metrics(tmp_path)) == played.scores.episodes
    # Only episodes that were over have been rewarded.
    assert len(endpoint.feedback) == played.scores.episodes


@pytest.mark.learning
@pytest.mark.timeout(1500)
def test_a_router_finds_the_trained_policy_at_little_cost(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    (tmp_path / "here").mkdir()
    shell = Steppe(tmp_path / "here", tmp_path / "outputs")
    try:
        train = ("train", "CartPole-v1", "-q", "--set", "video=false", "--seed", "1", "-n")
        trained = shell.launch(*train, "good", "--stop-at-return", "475").answer(600)
        assert trained.code == 0, trained.err
        policy = load_policy(shell.folder / "steppe-runs" / "good")
        for number in (1, 2):
            untrained = Policy(policy.description, tensors_for(policy.description, number))
            untrained.save(shell.folder / f"untrained{number}")
        graph = {"kind": "router", "bandit": "epsilon_greedy", "branches": ["untrained1", "untrained2", "good"]}
        (shell.folder / "router.json").write_text(json.dumps(graph))
        served = serve(shell, "-f", "router.json", "--seed", "1")
        words = ("-E", "CartPole-v1", "--runners", "5", "--episodes", "200", "--out", "mine", "-q")
        playing = shell.launch("play", "--url", served.url, *words)
        answer = playing.answer(600)
        assert answer.code == 0, answer.err
        rules = EpisodeRules(EnvironmentSpec(id="CartPole-v1"))
        own, _ = play_here(policy, rules, width=5, episodes=100, greedy=True, seed=1)
        returns = [record["episode_return"] for record in read_metrics(shell.folder / "mine")]
        assert len(returns) == 200
        assert sum(returns[50:]) / 150 >= 0.85 * own
        assert own >= 400
    finally:
        shell.end()
