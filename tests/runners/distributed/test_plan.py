"""Who does what, and what parameter servers and workers cannot do."""

from __future__ import annotations

import pytest
from runs import experiment

from steppe import runners
from steppe.agents import agent_class
from steppe.errors import UserError
from steppe.runners.distributed import check
from steppe.runners.distributed.plan import rollouts_per_push, worker_spec
from steppe.runners.setup import make_engine

MULTI = {"type": "multi_step", "num_steps": 5, "optimizer": "adam"}
POLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


def spec_of(agent, environment=POLE, **fields):
    return experiment(environment, agent, run_mode="distributed", **fields)


@pytest.mark.parametrize(
    ("agent", "environment", "reason"),
    [
        ("random", POLE, 'agent "random" learns nothing that workers could share; use run_mode "single"'),
        ("td3", PENDULUM, 'actor of agent "td3" waits for its critics'),
        ("trpo", POLE, "keeps each step within a divergence of one policy"),
        ({"type": "ppo", "baseline_optimizer": MULTI}, POLE, "different numbers of steps"),
        (
            {"type": "vpg", "optimizer": {"type": "optimized_step", "optimizer": "adam"}},
            POLE,
            "searches along each step",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_with_a_reason(agent, environment, reason):
    with pytest.raises(UserError, match=reason):
        runners.check(spec_of(agent, environment))


@pytest.mark.parametrize("agent", ["vpg", "a2c", "a3c", "impala", "ppo", "pqn", "dqn", "ddqn", "dqn_nstep", "qr_dqn"])
def test_what_can_be_shared_is_accepted(agent):
    assert check(spec_of(agent, seed=None, num_envs=None)) == []


@pytest.mark.parametrize("agent", ["ddpg", "sac", "naf"])
def test_continuous_actions_can_be_shared_too(agent):
    assert check(spec_of(agent, PENDULUM, seed=None, num_envs=None)) == []


def test_settings_without_effect_are_told():
    notices = check(spec_of("ppo", distributed={"synchronous": True, "max_staleness": 3, "overlap": True}))
    assert [notice.partition(" ")[0] for notice in notices] == ["distributed.max_staleness", "distributed.overlap"]
    assert any("runs with the same seed differ" in notice for notice in check(spec_of("ppo", seed=1)))


def test_the_memory_is_shared_out_and_never_smaller_than_a_batch():
    def capacity(spec):
        alone = worker_spec(spec)
        return alone.agent.settings_as(agent_class(alone.agent).Settings).memory.capacity

    assert capacity(spec_of({"type": "dqn", "memory": {"capacity": 9_000}}, num_workers=3)) == 3_000
    assert capacity(spec_of({"type": "dqn", "memory": "prioritized_replay"}, num_workers=5)) == 10_000
    assert capacity(spec_of({"type": "dqn", "memory": {"capacity": 300}}, num_workers=30)) == 128


def test_the_kind_of_memory_stays():
    alone = worker_spec(spec_of({"type": "dqn", "memory": "prioritized_replay"}))
    assert alone.agent.settings_as(agent_class(alone.agent).Settings).memory.type == "prioritized_replay"
    assert alone.run_mode == "single"


def test_synchronous_updates_are_fewer_so_that_the_learning_rate_falls_as_far():
    spec = spec_of("ppo", num_workers=4, total_timesteps=1_001, distributed={"synchronous": True})
    assert worker_spec(spec).limits[1] == 251
    assert worker_spec(spec_of("ppo", num_workers=4, total_timesteps=1_001)).limits[1] == 1_001


@pytest.mark.parametrize(
    ("agent", "fields", "expected"),
    [
        ("ppo", {}, 1),
        ("a2c", {}, 16),
        ("dqn", {}, 4),
        ("a2c", {"distributed": {"rollouts_per_push": 3}}, 3),
        ("a2c", {"network": [{"type": "dense", "size": 500}, {"type": "dense", "size": 500}]}, 2),
    ],
)
def test_several_gradients_share_a_message_unless_they_are_large(agent, fields, expected):
    spec = spec_of(agent, **fields)
    assert rollouts_per_push(spec, make_engine(worker_spec(spec), shards=1).agent) == expected


@pytest.mark.parametrize("address", ["6379", "host", "host:port", ":6379"])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(UserError, match="host:port"):
        spec_of("ppo", ray={"address": address})


def test_a_worker_gets_a_part_of_one_gpu_or_whole_ones():
    assert spec_of("ppo", ray={"gpus_per_worker": 0.33}).ray.gpus_per_worker == 0.33
    with pytest.raises(UserError, match="nothing in between"):
        spec_of("ppo", ray={"gpus_per_worker": 1.5})
