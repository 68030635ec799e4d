"""Environments given as classes, functions and instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import steppe
from steppe.envs.gymnasium import in_process
from steppe.errors import EnvironmentFault, UserError
from steppe.experiments.run_folder.store import RunFolder

SETTINGS: dict[str, Any] = {
    "agent": {"type": "vpg", "rollout_timesteps": 8},
    "total_timesteps": 64,
    "video": False,
    "progress": False,
}


class Walk(gymnasium.Env):
    """A walk of five steps; counts how often it was closed."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    closed = 0

    def __init__(self, render_mode: str | None = None, stride: float = 1.0) -> None:
        self.stride, self.render_mode = stride, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0.0, 0
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += self.stride if action else -self.stride
        self.steps += 1
        return np.array([self.place], np.float32), self.place, self.steps == 5, False, {}

    def close(self) -> None:
        self.closed += 1


def make_walk() -> gymnasium.Env:
    return Walk()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(in_process, "_environments", {})
    monkeypatch.setattr(in_process, "_wrappers", {})


def _recorded(experiment: steppe.Experiment) -> dict[str, Any]:
    return json.loads((experiment.folder / "experiment.json").read_text())


@pytest.mark.parametrize("environment", [Walk, make_walk], ids=["a class", "a function"])
def test_what_a_module_holds_is_called_by_its_name(environment: Any) -> None:
    experiment = steppe.Experiment(environment=environment, agent="random")
    assert _recorded(experiment)["environment"]["id"] == f"{__name__}:{environment.__name__}"


def test_a_class_without_a_name_of_its_own_is_trained_in_this_process() -> None:
    class Local(Walk):
        pass

    experiment = steppe.train(Local, **SETTINGS)
    assert experiment.status.state == "completed"
    assert _recorded(experiment)["environment"]["id"] == "in-process:Local"
    assert experiment.policy().act(np.zeros(1)) in (0, 1)


def test_a_lambda_makes_as_many_environments_as_are_asked_for() -> None:
    experiment = steppe.train(lambda: Walk(stride=2.0), num_envs=3, **SETTINGS)
    assert experiment.status.episode > 6


def test_settings_reach_a_class() -> None:
    class Local(Walk):
        pass

    experiment = steppe.train(
        {"id": Local, "settings": {"stride": 0.5}}, agent="random", total_timesteps=10, video=False
    )
    assert _recorded(experiment)["environment"]["settings"] == {"stride": 0.5}


def test_an_instance_is_one_environment_and_is_left_open() -> None:
    env = Walk()
    experiment = steppe.train(env, **SETTINGS)
    assert (experiment.status.state, _recorded(experiment)["num_envs"], env.closed) == ("completed", 1, 0)


def test_a_function_that_returns_the_same_environment_again_is_like_that_environment() -> None:
    env = Walk()
    experiment = steppe.train(lambda: env, **SETTINGS)
    assert (_recorded(experiment)["num_envs"], env.closed) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_envs": 2}, "num_envs=2 needs more than one; give its class"),
        ({"evaluation": {"every": 10}}, "an evaluation during training needs more than one; give its class"),
        ({"run_mode": "multi-threaded"}, 'run mode "multi-threaded" needs more than one; give its class'),
        ({"run_mode": "distributed"}, '"my_module:MyEnv"'),
    ],
)
def test_an_instance_cannot_be_several(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        steppe.Experiment(environment=Walk(), agent="ppo", **fields)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"run_mode": "distributed"}, 'run mode "distributed"'),
        ({"run_mode": "async", "agent": "dqn"}, 'run mode "async"'),
        ({"platform": "kubernetes"}, 'platform "kubernetes"'),
        ({"environment": {"vectorization": "processes"}}, 'vectorization "processes"'),
    ],
)
def test_other_processes_need_a_name(fields: dict[str, Any], what: str) -> None:
    class Local(Walk):
        pass

    environment = {"id": Local} | fields.pop("environment", {})
    with pytest.raises(UserError, match=f'object of this process, and {what} .* "my_module:MyEnv"'):
        steppe.Experiment(environment=environment, **fields)
    experiment = steppe.Experiment(environment=Local, agent="random")
    with pytest.raises(UserError, match="a process of its own makes environments in other processes"):
        experiment.start_detached()


def test_a_module_that_returns_one_environment_for_several_is_refused() -> None:
    only = Walk()
    globals()["make_the_same"] = lambda: only
    with pytest.raises(UserError, match="returned the same environment twice"):
        steppe.Experiment(environment=f"{__name__}:make_the_same", agent="random", num_envs=2)


def test_an_object_is_handed_over_again_to_resume_in_another_process() -> None:
    class Local(Walk):
        pass

    experiment = steppe.train(Local, name="first", **SETTINGS)
    in_process._environments.clear()  # as in a new process
    again = steppe.Experiment.open("first")
    with pytest.raises(UserError, match="hand it over again") as error:
        again.start(resume=True, total_timesteps=128)
    assert "environment=MyEnv" in str(error.value)
    assert again.status.state == "completed"
    assert again.start(resume=True, total_timesteps=128, environment=Local).timestep >= 128
    assert experiment.status.timestep >= 128


def test_an_instance_is_evaluated_too() -> None:
    env = Walk()
    experiment = steppe.train(env, **SETTINGS)
    assert experiment.evaluate(episodes=2).lengths == (5, 5)
    assert steppe.evaluate(experiment, Walk(stride=2.0), episodes=2).lengths == (5, 5)
    assert env.closed == 0


@pytest.mark.parametrize("environment", [3.5, object()], ids=["a number", "an object"])
def test_what_is_no_environment_is_refused(environment: Any) -> None:
    with pytest.raises(UserError, match="environment"):
        steppe.Experiment(environment=environment)


def test_an_environment_of_another_kind_is_told_what_it_lacks() -> None:
    class Alike:
        def reset(self) -> None: ...
        def step(self) -> None: ...

    with pytest.raises(UserError, match=r"let its class inherit from gymnasium\.Env"):
        steppe.Experiment(environment=Alike())


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env: gymnasium.Env, factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return self.factor * float(reward)


def test_wrappers_may_be_classes_and_functions() -> None:
    class Local(Doubled):
        pass

    wrappers = [gymnasium.wrappers.FlattenObservation, Doubled, {"type": Local, "factor": 3.0}, lambda env: env]
    experiment = steppe.train({"id": Walk, "wrappers": wrappers}, **SETTINGS)
    assert experiment.status.state == "completed"
    assert [each["type"] for each in _recorded(experiment)["environment"]["wrappers"]] == [
        "gymnasium.wrappers:FlattenObservation",
        f"{__name__}:Doubled",
        "in-process:Local",
        "in-process:lambda",
    ]
    always = steppe.evaluate(experiment, {"id": Walk, "wrappers": wrappers}, episodes=1).mean
    assert always == pytest.approx(6 * steppe.evaluate(experiment, Walk, episodes=1).mean)


def test_a_wrapper_without_a_name_is_refused_where_other_processes_need_one() -> None:
    class Local(Doubled):
        pass

    environment: dict[str, Any] = {"id": f"{__name__}:Walk", "wrappers": [Local]}
    for fields, what in (
        ({"run_mode": "distributed"}, 'run mode "distributed"'),
        ({"environment": environment | {"vectorization": "processes"}}, 'vectorization "processes"'),
    ):
        with pytest.raises(UserError, match=f'^wrapper "in-process:Local" of .*, and {what} .* "my_module:MyWrapper"$'):
            steppe.Experiment(**{"environment": environment, **fields})
    with pytest.raises(UserError, match="a group of seeds makes environments in other processes, which import wrapp"):
        steppe.train(environment, seeds=2)
    experiment = steppe.Experiment(environment=environment, agent="random")
    with pytest.raises(UserError, match="a process of its own makes environments in other processes"):
        experiment.start_detached()


def test_a_wrapper_is_handed_over_again_to_resume_in_another_process() -> None:
    class Local(Doubled):
        pass

    environment = {"id": f"{__name__}:Walk", "wrappers": [Local]}
    steppe.train(environment, name="first", **SETTINGS)
    in_process._wrappers.clear()  # as in a new process
    again = steppe.Experiment.open("first")
    with pytest.raises(UserError, match=r'"wrappers": \[MyWrapper\]'):
        again.start(resume=True, total_timesteps=128)
    assert again.status.state == "completed"
    assert again.start(resume=True, total_timesteps=128, environment=environment).timestep >= 128


def test_what_is_no_wrapper_is_refused() -> None:
    for wrapper, what in ((Doubled(Walk()), "an instance of Doubled"), (3, "3")):
        with pytest.raises(UserError, match=f"wrong wrapper {what}; give its class"):
            steppe.Experiment(environment={"id": Walk, "wrappers": [wrapper]})


class Broken(Walk):
    def step(self, action: Any) -> Any:
        if self.steps == 3:
            raise ValueError("no such room")
        return super().step(action)


def test_an_error_of_the_environment_names_the_line_and_leaves_its_traceback_in_the_log() -> None:
    experiment = steppe.Experiment(environment=Broken, agent="random", total_timesteps=50)
    with pytest.raises(EnvironmentFault) as error:
        experiment.start()
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if 'raise ValueError("no' in text
    )
    assert f"raised ValueError: no such room ({__file__}, line {line}, in step)" in str(error.value)
    assert "--debug" not in str(error.value)
    assert experiment.status.reason == str(error.value)
    log = RunFolder(experiment.folder).log.read_text()
    assert "Traceback (most recent call last)" in log
    assert f'line {line}, in step\n    raise ValueError("no such room")' in log


def test_an_error_in_a_worker_process_leaves_its_traceback_in_the_log() -> None:
    spec = {"id": f"{__name__}:Broken", "vectorization": "processes"}
    experiment = steppe.Experiment(environment=spec, agent="random", total_timesteps=50, num_envs=1)
    with pytest.raises(EnvironmentFault, match=r"test_given_environments\.py, line \d+, in step"):
        experiment.start()
    assert 'raise ValueError("no such room")' in RunFolder(experiment.folder).log.read_text()
