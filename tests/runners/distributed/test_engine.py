"""Runs with real parameter servers and workers: what is counted, kept, told, and the same again."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest
from processes import wait_until
from ray_processes import descendants, named
from runs import TINY_DQN, TINY_PPO, experiment, train

from steppe.errors import EnvironmentFault, UserError
from steppe.records.checkpoints import load_latest
from steppe.records.policy import load_policy
from steppe.runners.distributed import crew, make_engine

pytestmark = pytest.mark.usefixtures("a_ray")


def spec_of(agent=None, environment="CartPole-v1", **fields):
    common = {"run_mode": "distributed", "num_workers": 2, "num_parameter_servers": 2, "total_timesteps": 8_000}
    return experiment(environment, agent or TINY_PPO, **(common | fields))


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_ends_at_its_timesteps_and_leaves_what_every_run_leaves(tmp_path):
    spec = spec_of(summary_frequency="1000t", evaluation={"every": 4000, "episodes": 3})
    outcome = train(tmp_path, spec)
    per_push = 4 * 16 * 4  # four rollouts of two epochs of two minibatches are sixteen gradients
    assert outcome.state == "completed"
    assert outcome.timestep == -(-8_000 // per_push) * per_push
    assert outcome.update == outcome.timestep // 64 * 4
    saved = load_latest(tmp_path)
    assert saved.arrays["servers/counters"][0] == outcome.update, "every push was applied, once, by every server"
    written = rows(tmp_path)
    assert any("evaluation_return" in row for row in written)
    last = [row for row in written if "loss" in row][-1]
    assert last["workers"] == 2
    assert last["dropped"] == 0
    assert last["policy_lag"] >= 0
    assert last["updates_per_second"] > 0
    assert np.isfinite(last["loss"])
    policy = load_policy(tmp_path / "policy")
    assert policy.description.timestep == outcome.timestep
    kernel = next(name for name in policy.tensors if name.startswith("torso") and name.endswith("kernel"))
    assert policy.tensors[kernel].ravel()[:8].tolist() == pytest.approx(_policy_part(spec, saved, kernel), abs=0)


def _policy_part(spec, saved, name):
    engine = make_engine(spec)
    return engine.agent.layout.named(saved.arrays["servers/params"])[f"policy/{name}"].ravel()[:8].tolist()


def test_a_resumed_run_goes_on_with_new_workers(tmp_path):
    first = train(tmp_path, spec_of())
    before = load_latest(tmp_path)
    second = train(tmp_path, spec_of(total_timesteps=16_000), resume=True)
    after = load_latest(tmp_path)
    assert second.timestep > first.timestep
    assert second.update > first.update
    assert before.arrays["driver/next_worker"] == 2
    assert after.arrays["driver/next_worker"] == 4, "no stream of randomness is used twice"
    assert after.arrays["servers/optimizer/0/count"] == second.update, "the optimiser goes on"


def test_a_pause_keeps_what_no_row_has_told_yet(tmp_path):
    spec = spec_of(total_timesteps=10_000_000)
    shown = []
    train(tmp_path, spec, show=shown.append, request=lambda: "pause" if shown[-1].timestep > 2_000 else None)
    saved = load_latest(tmp_path)
    told, untold = saved.manifest["update"], saved.arrays["driver/in_no_row"][3]
    assert told + untold == saved.arrays["servers/counters"][0]


def test_synchronous_workers_give_the_same_run_again(tmp_path):
    spec = spec_of(distributed={"synchronous": True}, total_timesteps=4_000)
    runs = []
    for name in ("one", "two"):
        outcome = train(tmp_path / name, spec)
        runs.append((outcome.update, load_latest(tmp_path / name).arrays["servers/params"]))
    # Two workers make one update together.
    assert runs[0][0] == runs[1][0] == outcome.timestep // 64 * 4 // 2
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_what_is_too_stale_is_dropped_and_counted(tmp_path):
    spec = spec_of(distributed={"max_staleness": 1}, total_timesteps=30_000, summary_frequency="1000t")
    outcome = train(tmp_path, spec)
    dropped = rows(tmp_path)[-1]["dropped"]
    assert dropped > 0
    assert outcome.update + dropped == outcome.timestep // 64 * 4


def test_one_worker_that_overlaps_is_never_stale_and_its_targets_follow(tmp_path):
    agent = TINY_DQN | {"target_sync_frequency": 50}
    spec = spec_of(agent, total_timesteps=2_000, num_workers=1, distributed={"overlap": True})
    outcome = train(tmp_path, spec)
    saved = load_latest(tmp_path).arrays
    assert saved["servers/counters"].tolist()[:2] == [outcome.update, outcome.update // 50 * 50]
    assert outcome.update == (outcome.timestep - 32) // 16 + 1, "all that was learned was applied"
    assert saved["servers/target"].shape == saved["servers/params"].shape
    assert all(row["policy_lag"] == 0 for row in rows(tmp_path) if "policy_lag" in row)


NOISY = """
import logging
import worlds

class Noisy(worlds.World):
    def reset(self, **options):
        print("a word from the environment")
        logging.getLogger("simulator").warning("a warning from the simulator")
        return super().reset(**options)

class Failing(worlds.World):
    def step(self, action):
        raise RuntimeError("the simulator is broken")
"""


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "noisy_worlds.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("noisy")
def test_environments_in_python_are_stepped_normalised_and_heard(tmp_path, caplog):
    environment = {"id": "noisy_worlds:Noisy", "normalize_observations": True, "normalize_rewards": True}
    spec = spec_of(environment=environment, total_timesteps=4_000, evaluation={"every": 2000, "episodes": 3})
    with caplog.at_level(logging.INFO, "steppe"):
        outcome = train(tmp_path / "run", spec)
    assert outcome.mean_return > 4.0
    lines = {record.getMessage() for record in caplog.records}
    for worker in (0, 1):
        assert f"worker {worker}: a word from the environment" in lines
        assert f"worker {worker}: a warning from the simulator" in lines
    saved = load_latest(tmp_path / "run").arrays
    assert saved["servers/seen/observations/samples"] == outcome.timestep
    normalizer = load_policy(tmp_path / "run" / "policy").tensors["normalizer/mean"]
    np.testing.assert_allclose(normalizer, saved["servers/seen/observations/mean"], rtol=1e-5)


@pytest.mark.usefixtures("noisy")
def test_an_environment_that_always_fails_ends_the_run_with_its_words(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "SPARE_LOSSES", 0)
    with pytest.raises(EnvironmentFault, match="the simulator is broken"):
        train(tmp_path / "run", spec_of(environment="noisy_worlds:Failing"))


def actors():
    """What runs of this test's servers and workers."""
    names = [named(pid) for pid, _ in descendants(os.getpid())]
    return [name for name in names if name.startswith(("ray::Worker", "ray::ParameterServer"))]


def test_a_closed_engine_leaves_no_actors_and_closes_again():
    engine = make_engine(spec_of())
    engine.begin(1)
    assert actors()
    engine.close()
    engine.close()
    wait_until(lambda: not actors(), "all actors are gone", seconds=20)


def test_a_begin_that_fails_leaves_nothing(monkeypatch):
    engine = make_engine(spec_of())
    monkeypatch.setattr("steppe.runners.distributed.crew.Crew.fill", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.begin(1)
    wait_until(lambda: not actors(), "all actors are gone", seconds=20)
    engine.close()


def test_an_address_where_nobody_answers_is_a_mistake_of_the_user(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    engine = make_engine(spec_of(ray={"address": "127.0.0.1:9"}))
    with pytest.raises(UserError, match=r"nobody answers at 127\.0\.0\.1:9"):
        engine.begin(1)
