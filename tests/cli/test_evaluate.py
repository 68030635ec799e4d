"""`steppe evaluate` and `steppe.evaluate`, on policies whose returns are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from coded_policies import save_coded, write_module
from demonstrated import random_policy, steady_policy

import steppe as package
from steppe.errors import UserError
from steppe.experiments.run_folder.store import RunFolder
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.spaces import Box, Discrete

GYMNASIUM = EnvironmentSpec(id="CartPole-v1", backend="gymnasium")


@pytest.fixture
def folder(here: Path) -> RunFolder:
    """A run whose experiment cuts episodes at 30 timesteps; its best policy is not the one in policy/."""
    folder = RunFolder(here / "steppe-runs" / "first")
    folder.create(
        ExperimentSpec(name="first", environment=GYMNASIUM, agent="dqn", max_timesteps_per_episode=30, num_envs=2)
    )
    clumsy = random_policy(Box((4,)), Discrete(2), "CartPole-v1")
    clumsy.save(folder.path / "policy")
    steady_policy().save(folder.path / "policy" / "best")
    return folder


def test_an_experiments_policies_are_evaluated_by_its_rules(steppe: Callable, folder: RunFolder) -> None:
    answer = steppe("evaluate", "first", "--best", "--episodes", "4", "--seed", "5")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        "first: 4 episodes of CartPole-v1, the best action taken, seed 5\n"
        "  policy       of timestep 0\n"
        "  mean return  30.0 (95% interval 30.0 to 30.0)\n"
        "  deviation    0\n"
        "  IQM          30.0\n"
        "  min, max     30.0, 30.0\n"
        "  mean length  30.0\n"
    )
    in_policy, last = (
        json.loads(steppe("evaluate", "-e", "first", *words, "--episodes", "4", "--json").out)
        for words in ((), ("--last",))
    )
    assert in_policy == last
    assert (last["episodes"], last["seed"], last["greedy"], len(last["returns"])) == (4, 0, True, 4)
    assert last["mean"] == sum(last["returns"]) / 4 < 30
    assert last["returns"] == [float(length) for length in last["lengths"]]


def test_where_another_policy_is_handed_out_the_last_one_has_a_folder(steppe: Callable, folder: RunFolder) -> None:
    steady_policy().save(folder.path / "policy" / "last")
    answer = steppe("evaluate", "first", "--last", "--episodes", "2", "--json")
    assert json.loads(answer.out)["returns"] == [30.0, 30.0]


def test_a_policy_folder_is_evaluated_as_its_run_says_or_where_it_was_trained(
    steppe: Callable, here: Path, folder: RunFolder
) -> None:
    steady_policy().save(here / "steady")
    (here / "short.json").write_text('{"id": "CartPole-v1", "settings": {"max_episode_steps": 20}}')
    for words, length in (
        (("steppe-runs/first/policy/best",), 30),
        (("steady",), 500),
        (("steady/policy.json",), 500),
        (("steady", "-E", "short.json"), 20),
        (("first", "--best", "-E", "short.json"), 20),
    ):
        answer = steppe("evaluate", *words, "--episodes", "1", "--json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["lengths"] == [length], words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give one policy to evaluate: the name of an experiment, or a policy folder"),
        (("first", "-e", "first"), "two experiments are given"),
        (("steppe-runs/first/policy", "--best"), "is one policy; leave out --best"),
        (("first", "--best", "--last"), "--best and --last are two policies; leave one out"),
        (("first", "--episodes", "0"), "an evaluation plays at least 1 episode, not 0"),
        (("frist",), 'did you mean "first"?'),
    ],
)
def test_policies_that_cannot_be_evaluated_are_refused(
    steppe: Callable, folder: RunFolder, words: tuple[str, ...], sentence: str
) -> None:
    answer = steppe("evaluate", *words)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err


def test_a_run_without_a_best_policy_says_so(steppe: Callable, folder: RunFolder) -> None:
    for name in ("policy.safetensors", "policy.json"):
        (folder.path / "policy" / "best" / name).unlink()
    answer = steppe("evaluate", "first", "--best")
    assert (answer.code, 'experiment "first" has no best policy yet' in answer.err) == (2, True)


def test_a_policy_that_was_unpacked_runs_no_code(steppe: Callable, here: Path) -> None:
    save_coded(here / "policy", "weights_util:Layer")
    marker = write_module(here, "weights_util")
    answer = steppe("evaluate", "policy")
    assert (answer.code, "add --allow-modules weights_util" in answer.err) == (2, True)
    folder = RunFolder(here / "steppe-runs" / "sent")
    folder.create(ExperimentSpec(name="sent", environment="weights_util:make", agent="random"))
    steady_policy().save(folder.path / "policy")
    for word in ("sent", "steppe-runs/sent/policy"):
        answer = steppe("evaluate", word)
        assert (answer.code, "add --allow-modules weights_util" in answer.err) == (2, True)
    assert not marker.exists()


def test_python_evaluates_policies_experiments_and_folders(here: Path, folder: RunFolder) -> None:
    experiment = package.Experiment.open("first")
    found = experiment.evaluate(episodes=3, seed=1, which="best")
    assert found.returns == (30.0,) * 3
    assert experiment.evaluate("CartPole-v1", episodes=1, which="best").returns == (30.0,)
    last = experiment.evaluate(episodes=3)
    assert last == package.evaluate(experiment, episodes=3) == package.evaluate("first", episodes=3)
    assert package.evaluate(folder.path / "policy" / "best", episodes=3, seed=1) == found
    short = {"id": "CartPole-v1", "settings": {"max_episode_steps": 20}}
    assert package.evaluate(steady_policy(), short, episodes=2).lengths == (20, 20)
    assert package.evaluate(steady_policy(), episodes=1).lengths == (500,)
    with pytest.raises(UserError, match="does not say where it was trained"):
        package.evaluate(random_policy(Box((4,)), Discrete(2)))
