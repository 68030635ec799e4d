"""The start, end and interruption of a run, and its files."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from one_process_ray import one_process_ray
from runs import TINY_DQN, TINY_PPO, experiment, train

from steppe.errors import EnvironmentFault, TrainingDiverged
from steppe.policies.policy import load_policy
from steppe.records import checkpoints
from steppe.runners._base import Chunk
from steppe.runners.loop import TrainingLoop
from steppe.runners.setup import make_engine
from steppe.tracking.metrics import read_metrics


def test_a_run_ends_at_the_first_whole_iteration_after_its_timesteps(tmp_path):
    outcome = train(tmp_path, experiment(total_timesteps=1000))
    assert outcome.state == "completed"
    assert outcome.timestep == 1024
    assert outcome.reason == "all 1,000 timesteps were run"


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_a_run_ends_with_the_iteration_that_finishes_its_episodes(tmp_path, backend):
    outcome = train(tmp_path, experiment({"id": "CartPole-v1", "backend": backend}, episodes=30))
    lines = read_metrics(tmp_path)
    assert outcome.reason == "all 30 episodes were run"
    assert 30 <= outcome.episode <= 30 + 4 * 16
    assert all(line["episode"] < 30 for line in lines if line["timestep"] < outcome.timestep)


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_a_run_ends_when_the_last_100_episodes_are_good_enough(tmp_path, backend):
    spec = experiment({"id": "CartPole-v1", "backend": backend}, total_timesteps=100_000, stop_at_return=18.0)
    outcome = train(tmp_path, spec)
    assert outcome.reason == "the mean return of the last 100 episodes reached 18"
    assert outcome.episode >= 100
    assert outcome.mean_return >= 18.0
    assert outcome.timestep < 100_000


def test_episodes_are_cut_at_the_limit_of_the_experiment(tmp_path):
    train(tmp_path, experiment("Pendulum-v1", total_timesteps=1024, max_timesteps_per_episode=32))
    last = read_metrics(tmp_path)[-1] if read_metrics(tmp_path) else None
    manifest = checkpoints.load_latest(tmp_path).manifest
    assert manifest["episode"] == 1024 // 32
    assert last is None or last["mean_length"] == 32


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_repeated_actions_shorten_episodes(tmp_path, backend):
    fields = {"total_timesteps": 2048, "agent": {"type": "constant", "horizon": 16}, "summary_frequency": "64t"}
    for repeat in (1, 4):
        environment = {"id": "CartPole-v1", "backend": backend}
        train(tmp_path / str(repeat), experiment(environment, repeat_actions=repeat, **fields))
    once, repeated = (read_metrics(tmp_path / name)[-1] for name in ("1", "4"))
    assert 8 < once["mean_length"] < 11
    assert once["mean_length"] == once["mean_return"]
    assert 2 <= repeated["mean_length"] <= 3
    assert repeated["mean_return"] == pytest.approx(once["mean_return"], abs=0.5)


def test_a_deterministic_run_does_not_explore(tmp_path):
    spec = experiment(
        agent={**TINY_DQN, "exploration": {"type": "epsilon_anneal", "initial_epsilon": 1.0}},
        deterministic=True,
        total_timesteps=64,
    )
    train(tmp_path / "deterministic", spec)
    arrays = checkpoints.load_latest(tmp_path / "deterministic").arrays
    observations = arrays["learner/memory/timesteps/observations"][:1]
    taken = arrays["learner/memory/timesteps/actions"][:1]
    # The actions of the first rows came from the initial parameters, which are in the checkpoint of timestep 0.
    for path in (tmp_path / "deterministic" / "checkpoints").iterdir():
        if path.name != "0":
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    fresh = tmp_path / "fresh"
    train(fresh, spec.model_copy(update={"total_timesteps": 1}), request=lambda: "stop")
    policy = load_policy(fresh / "policy")
    assert policy.act(observations[0]).tolist() == taken[0].tolist()


@pytest.mark.parametrize(("request_", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_request_ends_the_run_with_a_checkpoint(tmp_path, request_, state):
    calls = iter(range(1000))
    outcome = train(tmp_path, experiment(), request=lambda: request_ if next(calls) == 5 else None)
    assert outcome.state == state
    assert checkpoints.load_latest(tmp_path).timestep == outcome.timestep


def test_summaries_come_as_often_as_asked_and_count_everything(tmp_path):
    train(tmp_path, experiment(total_timesteps=1024, summary_frequency="128t"))
    lines = read_metrics(tmp_path)
    assert [line["timestep"] for line in lines] == list(range(128, 1025, 128))
    assert [line["update"] for line in lines] == [4 * line["timestep"] // 64 for line in lines]
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["entropy"]) for line in lines)
    assert {line["worker"] for line in lines} == {0}


def test_checkpoints_come_as_often_as_asked(tmp_path):
    spec = experiment(total_timesteps=1024, saver_frequency="256t")
    train(tmp_path, spec)
    assert checkpoints.list_checkpoints(tmp_path) == [512, 768, 1024]


def test_checkpoints_by_episodes(tmp_path):
    seen = set()

    def watch(progress):
        if progress.phase == "saving":
            seen.add(progress.episode)

    train(tmp_path, experiment(total_timesteps=2048, saver_frequency="20e"), show=watch)
    assert len(seen) >= 4


def test_a_run_leaves_a_policy_that_loads_and_acts(tmp_path):
    train(tmp_path, experiment(total_timesteps=512, evaluation={"every": 256, "episodes": 2}))
    for folder in (tmp_path / "policy", tmp_path / "policy" / "best"):
        assert load_policy(folder).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert (tmp_path / "policy" / "policy.onnx").stat().st_size > 1000
    description = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert (description["environment"], description["timestep"]) == ("CartPole-v1", 512)


def test_a_loss_that_is_not_a_number_stops_with_the_last_good_checkpoint(tmp_path):
    agent = {**TINY_PPO, "learning_rate": 1e30, "max_gradient_norm": None}
    with pytest.raises(TrainingDiverged, match="the last good checkpoint is of timestep"):
        train(tmp_path, experiment(agent=agent, total_timesteps=4096))
    arrays = checkpoints.load_latest(tmp_path).arrays
    assert all(math.isfinite(float(abs(array).max())) for name, array in arrays.items() if name.endswith("params"))


def test_an_environment_that_raises_is_named_with_its_step(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_world.py").write_text(
        "import gymnasium\nimport numpy as np\n\n\n"
        "class Faulty(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    steps = 0\n\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps == 21:\n"
        "            raise RuntimeError('the wheel came off')\n"
        "        return np.zeros(2, np.float32), 0.0, False, False, {}\n"
    )
    with pytest.raises(EnvironmentFault, match=r"faulty_world:Faulty.*21.*the wheel came off"):
        train(tmp_path / "run", experiment("faulty_world:Faulty", total_timesteps=4096))
    assert checkpoints.load_latest(tmp_path / "run").timestep == 64


def test_a_short_run_leaves_the_losses_of_its_last_iteration(tmp_path):
    (tmp_path / "often").mkdir()
    train(tmp_path / "often", experiment(total_timesteps=256, summary_frequency="64t"))
    train(tmp_path / "once", experiment(total_timesteps=256, summary_frequency="5000t"))
    train(tmp_path / "between", experiment(total_timesteps=256, summary_frequency="192t"))
    expected = read_metrics(tmp_path / "often")[-1]
    for folder in ("once", "between"):
        last = read_metrics(tmp_path / folder)[-1]
        assert (last["timestep"], last["loss"], last["entropy"]) == (256, expected["loss"], expected["entropy"])


def test_a_distributed_run_with_replay_memories_resumes_with_another_number_of_workers(tmp_path):
    def spec(**fields):
        fields = {"run_mode": "distributed", "network": [{"type": "dense", "size": 8}]} | fields
        return experiment(agent=TINY_DQN, **fields)

    with one_process_ray():
        first = train(tmp_path, spec(num_workers=2, total_timesteps=200))
        # Each worker had half of the memory's capacity before, and now has a third.
        second = train(tmp_path, spec(num_workers=3, total_timesteps=400), resume=True)
    assert second.timestep >= 400 > first.timestep
    assert second.update > first.update


def test_current_values_are_shown_even_without_iterations(tmp_path):
    spec, shown = experiment(total_timesteps=64), []
    engine = make_engine(spec)
    advance, calls = engine.advance, itertools.count()

    def advance_now_and_then(*arguments):
        if next(calls) == 0:
            return Chunk(0, {}, False, True, figures={"workers": 0.0})
        return advance(*arguments)

    engine.advance = advance_now_and_then
    try:
        TrainingLoop(spec, engine, tmp_path, lambda: None, shown.append).run(None)
    finally:
        engine.close()
    first, last = [progress.metrics for progress in shown if progress.phase == "training"]
    assert first == {"workers": 0.0}
    # The metrics of the next iteration replace it.
    assert "loss" in last
    assert "workers" not in last
