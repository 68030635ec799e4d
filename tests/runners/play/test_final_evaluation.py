"""The evaluation at the end of a run, on policies with known returns, and after real training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import worlds
from demonstrated import steady_policy
from runs import experiment, train

from steppe.policies.policy import Policy, PolicyDescription, load_policy
from steppe.runners._base import RunOutcome
from steppe.runners.play.evaluation import evaluate
from steppe.runners.play.final_evaluation import evaluate_at_end
from steppe.specs.spaces import Box, Discrete

GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}
NEVER = lambda: None  # noqa: E731


def leaning(timestep: int, action: int = 0) -> Policy:
    """A policy that always pushes to one side, so that episodes have about ten timesteps."""
    spaces = (Box((4,)), Discrete(2))
    description = PolicyDescription("constant", "CartPole-v1", timestep, *spaces, head={"kind": "constant"})
    return Policy(description, {"constant/action": np.array(action)})


def trained(folder: Path, *, last: Policy, best: Policy | None) -> Path:
    last.save(folder / "policy")
    if best is not None:
        best.save(folder / "policy" / "best")
    return folder


def outcome(seconds: float = 1.0) -> RunOutcome:
    return RunOutcome("completed", "done", 100, 9, 4, 12.5, seconds, [])


def place(environment=GYMNASIUM, **final):
    limits = {"max_timesteps_per_episode": 50}
    return experiment(environment, "random", final_evaluation={"episodes": 3, **final}, **limits)


def actions_of(folder: Path) -> str:
    """The actions of the policy in a folder, which identify it."""
    kind = load_policy(folder).kind
    return "steady" if kind == "q_values" else "leaning"


def test_the_better_policy_is_kept_and_both_scores_are_written(tmp_path):
    folder, ended = trained(tmp_path, last=leaning(100), best=steady_policy()), outcome()
    found = evaluate_at_end(place(), folder, ended, NEVER)
    assert (found.handed_out, found.best.returns, ended.notices) == ("best", (50.0,) * 3, [])
    assert found.last.mean < 15
    # Both play the same episodes, which are also those of steppe evaluate.
    assert found.last == evaluate(leaning(100), place(), episodes=3, seed=1, num_envs=1)
    assert [actions_of(folder / name) for name in ("policy", "policy/last", "policy/best")] == [
        "steady",
        "leaning",
        "steady",
    ]
    data = json.loads((folder / "evaluation.json").read_text())
    assert (data["format"], data["version"], data["handed_out"]) == ("steppe-evaluation", 1, "best")
    assert (data["last"], data["best"]) == (found.last.to_json(), found.best.to_json())
    assert found.to_status() == {
        "mean": 50.0,
        "interval": [50.0, 50.0],
        "episodes": 3,
        "timestep": 0,
        "policy": "best",
        "last": found.last.mean,
        "best": 50.0,
    }


@pytest.mark.parametrize(
    ("last", "best", "hand_out"),
    [
        pytest.param(steady_policy(), leaning(40), "better", id="the last is better"),
        pytest.param(steady_policy(), steady_policy(epsilon=0.5), "better", id="both are as good"),
        pytest.param(leaning(100), steady_policy(), "last", id="the last is wanted"),
    ],
)
def test_the_last_policy_stays_in_its_place_otherwise(tmp_path, last, best, hand_out):
    folder = trained(tmp_path, last=last, best=best)
    before = (folder / "policy" / "policy.safetensors").read_bytes()
    found = evaluate_at_end(place(hand_out=hand_out), folder, outcome(), NEVER)
    assert (found.handed_out, found.to_status()["mean"]) == ("last", found.last.mean)
    assert (folder / "policy" / "policy.safetensors").read_bytes() == before
    assert not (folder / "policy" / "last").exists()


@pytest.mark.parametrize("best", [None, leaning(100)])
def test_a_best_policy_that_is_the_last_one_is_not_played_again(tmp_path, best):
    found = evaluate_at_end(place(), trained(tmp_path, last=leaning(100), best=best), outcome(), NEVER)
    assert (found.best, found.handed_out, found.to_status()["best"]) == (None, "last", None)


def test_evaluating_again_uses_the_kept_last_policy(tmp_path):
    folder = trained(tmp_path, last=leaning(100), best=steady_policy())
    first = evaluate_at_end(place(), folder, outcome(), NEVER)
    assert evaluate_at_end(place(), folder, outcome(), NEVER) == first
    found = evaluate_at_end(place(hand_out="last"), folder, outcome(), NEVER)
    assert (found.handed_out, found.last, found.best) == ("last", first.last, first.best)
    assert (actions_of(folder / "policy"), (folder / "policy" / "last").exists()) == ("leaning", False)


def test_a_request_to_end_the_run_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr("steppe.runners.play.evaluation.LOOK_SECONDS", 0.0)
    folder, ended = trained(tmp_path, last=leaning(100), best=steady_policy()), outcome()
    assert evaluate_at_end(place(), folder, ended, lambda: "pause") is None
    assert ended.notices == ["no evaluation at the end: the run was asked to pause meanwhile"]
    assert (actions_of(folder / "policy"), (folder / "evaluation.json").exists()) == ("leaning", False)


def test_too_little_time_gets_a_notice(tmp_path):
    folder, ended = trained(tmp_path, last=steady_policy(), best=None), outcome()
    assert evaluate_at_end(place(seconds=1e-9), folder, ended, NEVER) is None
    assert ended.notices == ["no evaluation at the end: no episode of CartPole-v1 ended within 1e-09 s"]


def test_an_environment_that_hangs_keeps_no_run_of_workers_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("steppe.runners.play.final_evaluation.PATIENCE_SECONDS", 0.2)
    folder, ended = trained(tmp_path, last=leaning(100), best=None), outcome()
    spec = place("worlds:hanging", seconds=0.1).model_copy(update={"run_mode": "async"})
    try:
        assert evaluate_at_end(spec, folder, ended, NEVER) is None
    finally:
        worlds.MAY_ANSWER.set()
    assert ended.notices == ["no evaluation at the end: the environment did not answer within 0 s"]
    assert actions_of(folder / "policy") == "leaning"


def test_workers_runs_are_evaluated_as_others(tmp_path):
    folder, ended = trained(tmp_path, last=leaning(100), best=steady_policy()), outcome()
    found = evaluate_at_end(place().model_copy(update={"run_mode": "async"}), folder, ended, NEVER)
    assert (found.handed_out, found.best.returns, ended.notices) == ("best", (50.0,) * 3, [])
    asked = outcome()
    assert (
        evaluate_at_end(place("not_there:make").model_copy(update={"run_mode": "async"}), folder, asked, NEVER) is None
    )
    assert "not_there" in asked.notices[0]


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("not_there:make", "no evaluation at the end: "),
        ({"id": "ue4", "settings": {"address": "127.0.0.1:9"}}, "a game plays with one learner at a time"),
        ("MountainCar-v0", "whose observations are not those of MountainCar-v0"),
    ],
)
def test_a_failed_final_evaluation_does_not_fail_the_run(tmp_path, environment, sentence):
    folder, ended = trained(tmp_path, last=leaning(100), best=None), outcome()
    assert evaluate_at_end(place(environment), folder, ended, NEVER) is None
    assert sentence in ended.notices[0]


def test_a_completed_run_is_evaluated_and_a_paused_one_is_not(tmp_path):
    spec = experiment(total_timesteps=128, final_evaluation={"episodes": 2})
    phases = []
    ended = train(tmp_path / "a", spec, show=lambda progress: phases.append(progress.phase))
    assert (ended.evaluation.last.episodes, ended.evaluation.last.timestep) == (2, 128)
    assert phases[-2:] == ["evaluating", "exporting"]
    assert train(tmp_path / "b", spec, request=lambda: "pause").evaluation is None
    assert not (tmp_path / "b" / "evaluation.json").exists()


def test_training_resumes_from_the_last_policy_even_if_the_best_was_kept(tmp_path):
    shorter, longer = (experiment(total_timesteps=total) for total in (128, 256))
    train(tmp_path / "at once", longer)
    folder = tmp_path / "in two"
    train(folder, shorter)
    steady_policy().save(folder / "policy" / "best")
    whole_episodes = place().model_copy(update={"max_timesteps_per_episode": None})
    found = evaluate_at_end(whole_episodes, folder, outcome(), NEVER)
    assert (found.handed_out, actions_of(folder / "policy")) == ("best", "steady")
    train(folder, longer, resume=True)
    files = [path / "policy" / "policy.safetensors" for path in (folder, tmp_path / "at once")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # The results of the earlier policies are removed.
    assert not (folder / "policy" / "last").exists()
    assert not (folder / "evaluation.json").exists()


def test_an_evaluation_during_training_is_shown_and_kept_by_a_resume(tmp_path):
    spec = experiment(total_timesteps=128, evaluation={"every": 64, "episodes": 2})
    told = []
    train(tmp_path / "a", spec, show=lambda progress: told.append(progress.evaluation))
    assert (told[0], told[-1]["episodes"], told[-1]["timestep"]) == (None, 2, 128)
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [each["mean"] for each in told[-1:]] == [
        line["evaluation_return"] for line in lines if "evaluation_return" in line
    ][-1:]
    resumed = []
    train(tmp_path / "a", spec, resume=True, show=lambda progress: resumed.append(progress.evaluation))
    assert resumed[-1] == told[-1]
