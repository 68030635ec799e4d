"""Training 2N timesteps equals training N, stopping, and resuming for N more."""

from __future__ import annotations

import numpy as np
import pytest
from runs import TINY_DQN, TINY_PPO, TINY_VPG, experiment, train

from steppe.errors import CheckpointError
from steppe.records import checkpoints
from steppe.runners.loop import TrainingLoop
from steppe.tracking.metrics import read_metrics

AGENTS = {
    "ppo": TINY_PPO,
    "ppo with a decaying learning rate": {**TINY_PPO, "learning_rate_decay": "linear"},
    "vpg": TINY_VPG,
    "dqn": TINY_DQN,
    "dqn with prioritised replay, n-step returns and dueling": {
        **TINY_DQN,
        "n_step": 3,
        "dueling": True,
        "memory": {"type": "prioritized_replay", "capacity": 256},
    },
    "random": {"type": "random", "horizon": 16},
}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS.keys())
def test_resume_continues_bit_for_bit(tmp_path, agent):
    spec = experiment(agent=agent, total_timesteps=2048)
    train(tmp_path / "whole", spec)
    calls = iter(range(100))
    # Pauses after two chunks, of one and of at most eight iterations; the third could contain all the rest.
    first = train(tmp_path / "halves", spec, request=lambda: "pause" if next(calls) == 2 else None)
    assert first.state == "paused"
    assert 0 < first.timestep < 2048
    second = train(tmp_path / "halves", spec, resume=True)
    whole, halves = (checkpoints.load_latest(tmp_path / name) for name in ("whole", "halves"))
    assert (second.timestep, whole.timestep, halves.timestep) == (2048, 2048, 2048)
    assert_same_bits(whole.arrays, halves.arrays)
    counters = ("timestep", "episode", "update", "mean_return")
    assert {name: whole.manifest[name] for name in counters} == {name: halves.manifest[name] for name in counters}


@pytest.mark.parametrize("environment", ["Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "GridWorld-v0"])
def test_resume_is_exact_with_normalisation_on_every_kind_of_environment(tmp_path, environment):
    spec = experiment(
        {"id": environment, "normalize_observations": environment != "GridWorld-v0", "normalize_rewards": True},
        total_timesteps=1024,
        max_timesteps_per_episode=40,
    )
    train(tmp_path / "whole", spec)
    train(tmp_path / "halves", spec.model_copy(update={"total_timesteps": 512}))
    train(tmp_path / "halves", spec, resume=True)
    whole, halves = (checkpoints.load_latest(tmp_path / name) for name in ("whole", "halves"))
    assert_same_bits(whole.arrays, halves.arrays)


def test_the_size_of_chunks_changes_nothing(tmp_path):
    spec = experiment(total_timesteps=2048)
    train(tmp_path / "free", spec)
    train(tmp_path / "often saved", experiment(total_timesteps=2048, saver_frequency="64t"))
    free, saved = (checkpoints.load_latest(tmp_path / name) for name in ("free", "often saved"))
    assert_same_bits(free.arrays, saved.arrays)


def test_evaluations_do_not_disturb_training(tmp_path):
    train(tmp_path / "without", experiment(total_timesteps=1024))
    train(tmp_path / "with", experiment(total_timesteps=1024, evaluation={"every": 256, "episodes": 3}))
    without, with_evaluations = (checkpoints.load_latest(tmp_path / name) for name in ("without", "with"))
    assert_same_bits(without.arrays, with_evaluations.arrays)
    evaluated = [line for line in read_metrics(tmp_path / "with") if "evaluation_return" in line]
    assert [line["timestep"] for line in evaluated] == [256, 512, 768, 1024]


def test_another_seed_gives_another_run(tmp_path):
    for seed in (1, 2):
        train(tmp_path / str(seed), experiment(total_timesteps=256, seed=seed))
    one, two = (checkpoints.load_latest(tmp_path / name).arrays for name in ("1", "2"))
    assert np.any(one["learner/agent/params"] != two["learner/agent/params"])


def test_a_host_environment_resumes_with_all_but_its_state_and_says_so(tmp_path):
    spec = experiment({"id": "CartPole-v1", "backend": "gymnasium"}, total_timesteps=512)
    train(tmp_path, spec.model_copy(update={"total_timesteps": 256}))
    before = checkpoints.load_latest(tmp_path)
    outcome = train(tmp_path, spec, resume=True)
    assert outcome.timestep == 512
    assert outcome.update == 2 * before.manifest["update"]
    assert any("environments start new episodes" in notice for notice in outcome.notices)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    train(tmp_path, experiment(total_timesteps=128))
    other = experiment(total_timesteps=256, network=[{"type": "dense", "size": 7}])
    with pytest.raises(CheckpointError, match="made by an experiment with other settings"):
        train(tmp_path, other, resume=True)


def test_a_run_does_not_go_on_with_other_settings_of_its_agent(tmp_path):
    """The settings differ as in a later version with other defaults."""
    train(tmp_path, experiment(agent={**TINY_PPO, "discount": 0.9, "optimizer": {"beta1": 0.8}}, total_timesteps=128))
    for agent, sentence in (
        ({"optimizer": {"beta1": 0.8}}, "trained with agent.discount 0.9, but it is 0.99 now .*; write it into"),
        ({"discount": 0.9}, "trained with agent.optimizer.beta1 0.8, but it is 0.9 now"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            train(tmp_path, experiment(agent=TINY_PPO | agent, total_timesteps=256), resume=True)


def test_settings_that_only_one_version_has_do_not_hinder_a_resume(tmp_path, monkeypatch):
    kept = TrainingLoop._settings

    def of_another_version(self):
        settings = kept(self)
        return {name: settings[name] for name in settings if name != "clip"} | {"gone": 1}

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_settings", of_another_version)
        train(tmp_path, experiment(total_timesteps=128))
    assert train(tmp_path, experiment(total_timesteps=256), resume=True).timestep == 256


def test_a_checkpoint_that_does_not_say_its_settings_is_resumed(tmp_path, monkeypatch):
    save = checkpoints.save

    def as_before(folder, timestep, arrays, manifest):
        return save(folder, timestep, arrays, {name: manifest[name] for name in manifest if name != "settings"})

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", as_before)
        train(tmp_path, experiment(total_timesteps=128))
    assert "settings" not in checkpoints.load_latest(tmp_path).manifest
    assert train(tmp_path, experiment(total_timesteps=256), resume=True).timestep == 256


def test_a_broken_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    spec = experiment(total_timesteps=512, saver_frequency="128t")
    train(tmp_path, spec)
    newest = tmp_path / "checkpoints" / "512" / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    outcome = train(tmp_path, spec, resume=True)
    assert outcome.timestep == 512
    assert any("512" in notice for notice in outcome.notices)
