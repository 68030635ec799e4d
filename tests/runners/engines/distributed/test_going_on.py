"""Runs end, are paused and resumed, and survive lost servers and workers, which run in this process."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from one_process_ray import OneProcessRay, one_process_ray
from runs import TINY_DQN, TINY_VPG, experiment, train

from steppe.errors import EnvironmentFault
from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.distributed import engine, make_engine
from steppe.runners.engines.distributed.messages import WorkReport
from steppe.specs.experiment import ExperimentSpec

NETWORK = [{"type": "dense", "size": 8}]
PER_PUSH = 16 * 8 * 4
"""The timesteps of one push: sixteen rollouts."""


@pytest.fixture
def ray() -> Iterator[OneProcessRay]:
    with one_process_ray() as ray:
        yield ray


def spec_of(agent=None, environment="CartPole-v1", **fields) -> ExperimentSpec:
    common = {"run_mode": "distributed", "num_workers": 2, "num_parameter_servers": 2, "total_timesteps": 8 * PER_PUSH}
    return experiment(environment, agent or TINY_VPG, **({"network": NETWORK} | common | fields))


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def pausing_after(timestep, shown):
    return {"show": shown.append, "request": lambda: "pause" if shown[-1].timestep >= timestep else None}


@pytest.mark.usefixtures("ray")
def test_a_run_ends_at_its_timesteps_with_the_usual_files(tmp_path):
    spec = spec_of(total_timesteps=5_000, summary_frequency="1000t", evaluation={"every": 2000, "episodes": 3})
    outcome = train(tmp_path, spec)
    assert outcome.state == "completed"
    assert outcome.timestep == -(-5_000 // PER_PUSH) * PER_PUSH
    assert outcome.update == outcome.timestep // 32
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


@pytest.mark.usefixtures("ray")
def test_synchronous_workers_give_the_same_run_again_also_when_it_is_paused(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "TICK_SECONDS", 0.0)  # one round at a time
    spec = spec_of(distributed={"synchronous": True})
    outcome = train(tmp_path / "whole", spec)
    first = train(tmp_path / "paused", spec, **pausing_after(3 * PER_PUSH, []))
    again = train(tmp_path / "paused", spec, resume=True)
    # Two workers make one update jointly for each of the rollouts.
    assert again.update == outcome.update == 8 * 16 // 2
    assert (first.state, first.timestep) == ("paused", 4 * PER_PUSH)
    assert again.timestep == outcome.timestep == 8 * PER_PUSH
    assert again.mean_return == outcome.mean_return
    assert not again.notices
    one, other = (load_latest(tmp_path / name).arrays for name in ("whole", "paused"))
    assert set(one) == set(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_a_paused_run_resumes_with_other_numbers_of_workers_and_servers(tmp_path, ray):
    first = train(tmp_path, spec_of(total_timesteps=10_000_000), **pausing_after(2_000, []))
    before = load_latest(tmp_path)
    told, unreported = before.manifest["update"], before.arrays["driver/in_no_row"][3]
    assert told + unreported == before.arrays["servers/counters"][0], "what no row has told yet is kept"
    assert before.arrays["driver/workers"].tolist() == [0, 1]
    more = first.timestep + 4_000
    second = train(tmp_path, spec_of(total_timesteps=more, num_workers=1, num_parameter_servers=3), resume=True)
    after = load_latest(tmp_path)
    assert second.timestep >= more
    assert after.arrays["driver/workers"].tolist() == [2], "no stream of randomness is used twice"
    assert after.arrays["servers/optimizer/0/count"] == second.update > told, "the optimiser goes on"
    assert not ray.living("GradientWorker")
    assert not ray.living("ParameterServerActor")


def paused_without_worker(number, tmp_path, ray, spec):
    """A run whose worker of this number is gone when the checkpoint is made."""
    shown = []

    def request():
        if shown[-1].timestep < 500:
            return None
        ray.kill(ray.living("GradientWorker")[number])
        return "pause"

    train(tmp_path, spec, show=shown.append, request=request)
    return load_latest(tmp_path)


@pytest.mark.parametrize(("environment", "inside"), [("CartPole-v1", "learner/"), ("worlds:World", "")])
def test_a_worker_that_a_checkpoint_is_without_costs_only_its_own_memory(
    tmp_path, ray, caplog, monkeypatch, environment, inside
):
    monkeypatch.setattr(engine, "MOST_PUSHES", 1)
    spec = spec_of(TINY_DQN | {"memory": {"capacity": 20_000}}, environment, total_timesteps=10_000_000)
    with caplog.at_level(logging.WARNING):
        saved = paused_without_worker(0, tmp_path, ray, spec)
    paused = saved.arrays
    assert "worker 0 did not send its own state" in caplog.text
    assert (paused["driver/workers"].tolist(), paused["driver/num_workers"]) == ([1], 2)
    filled = paused[f"workers/1/{inside}memory/filled"]
    again = train(tmp_path, spec, resume=True, **pausing_after(saved.timestep + 1, []))
    words = "1 of 2 workers.* with empty memories, since .* did not answer when the checkpoint was made"
    assert len(again.notices) == 1
    assert re.search(words, again.notices[0])
    after = load_latest(tmp_path).arrays
    assert after["driver/workers"].tolist() == [1, 2]
    own, anew = (after[f"workers/{number}/{inside}memory/filled"] for number in (1, 2))
    assert own > filled
    assert anew > 0


def test_memories_of_another_size_are_not_resumed(tmp_path, ray):
    saved = paused_without_worker(2, tmp_path, ray, spec_of(TINY_DQN, num_workers=3, total_timesteps=10_000_000))
    assert saved.arrays["driver/workers"].tolist() == [0, 1]
    again = train(tmp_path, spec_of(TINY_DQN, num_workers=2, total_timesteps=saved.timestep + 1_000), resume=True)
    assert again.state == "completed"
    assert again.notices == [
        "all 2 workers start new episodes with empty memories, since they are not the 3 of the checkpoint; all else "
        "goes on exactly"
    ]


@pytest.mark.usefixtures("ray")
def test_a_run_resumed_from_its_beginning_has_the_same_workers(tmp_path):
    spec = spec_of()
    train(tmp_path, spec, request=lambda: "pause")
    assert load_latest(tmp_path).arrays["driver/workers"].tolist() == [0, 1]
    outcome = train(tmp_path, spec, resume=True)
    assert not outcome.notices
    assert load_latest(tmp_path).arrays["driver/workers"].tolist() == [0, 1]


@pytest.mark.learning
@pytest.mark.usefixtures("ray")
def test_one_worker_that_overlaps_is_never_stale_and_its_memory_and_targets_go_on(tmp_path):
    agent = TINY_DQN | {"target_sync_frequency": 50, "update_frequency": 4}
    spec = spec_of(agent, total_timesteps=2_000, num_workers=1, distributed={"overlap": True})
    train(tmp_path, spec, **pausing_after(500, []))
    paused = load_latest(tmp_path).arrays
    assert paused["workers/0/learner/memory/filled"] > 0
    outcome = train(tmp_path, spec, resume=True)
    saved = load_latest(tmp_path).arrays
    assert saved["servers/counters"].tolist()[:2] == [outcome.update, outcome.update // 50 * 50]
    assert outcome.update == (outcome.timestep - 32) // 16 + 1, "all that was learned was applied, without a new start"
    assert saved["servers/target"].shape == saved["servers/params"].shape
    assert all(row["policy_lag"] == 0 for row in rows(tmp_path) if "policy_lag" in row)


@pytest.mark.parametrize("synchronous", [False, True])
def test_lost_workers_and_servers_are_made_up_for(tmp_path, ray, caplog, monkeypatch, synchronous):
    monkeypatch.setattr(engine, "TICK_SECONDS", 0.0)  # advance returns after every push
    monkeypatch.setattr(engine, "MOST_PUSHES", 1)
    losses = [("ParameterServerActor", 1), ("GradientWorker", 0), ("ParameterServerActor", 0)]

    def request():
        if losses and ray.living("GradientWorker"):
            kind, index = losses.pop()
            ray.kill(ray.living(kind)[index])

    spec = spec_of(distributed={"synchronous": synchronous})
    with caplog.at_level(logging.WARNING):
        outcome = train(tmp_path, spec, request=request)
    assert (outcome.state, outcome.timestep) == ("completed", 8 * PER_PUSH)
    assert not losses
    assert caplog.text.count("takes its place") == 1
    assert caplog.text.count("another one goes on from update") == 2
    assert load_latest(tmp_path).arrays["driver/next_worker"] == 3


def test_a_run_without_a_machine_for_a_server_can_be_paused_and_resumed(tmp_path, ray, monkeypatch):
    monkeypatch.setattr(engine, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(engine, "MOST_PUSHES", 1)
    idle = []

    def request():
        if ray.has_machines:
            if not ray.living("GradientWorker"):
                return None
            ray.has_machines = False
            ray.kill(ray.living("ParameterServerActor")[1])
        idle.append(True)
        # After a few calls the workers have reported it.
        return "pause" if len(idle) > 10 else None

    paused = train(tmp_path, spec_of(), request=request)
    saved = load_latest(tmp_path)
    assert paused.state == "paused"
    assert saved.arrays["driver/workers"].tolist() == [0, 1]
    ray.has_machines = True
    assert train(tmp_path, spec_of(), resume=True).timestep == 8 * PER_PUSH


def test_reports_of_other_workers_count_when_a_fault_ends_the_run():
    driver = make_engine(spec_of())

    def poll(_):
        raise EnvironmentFault("the simulator is broken")

    driver._pool = SimpleNamespace(
        poll=poll, unreported=lambda: [WorkReport(1, pushes=1, timesteps=PER_PUSH, updates=16)]
    )
    driver._gather(0.0)
    chunk = driver._totals.chunk(ChunkLimits(), workers=2)
    assert (chunk.columns["timesteps"], chunk.columns["updates"]) == (PER_PUSH, 16)
    assert str(chunk.fault) == "the simulator is broken"
