"""The division of an experiment among workers and servers, and refused agents."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from demonstrated import made_up_file
from runs import experiment

from steppe import agents, runners
from steppe.agents import agent_class
from steppe.errors import MissingExtra, UserError
from steppe.runners.engines import distributed
from steppe.runners.engines.distributed import checked_engine
from steppe.runners.engines.distributed.gradient_tape import parts_of
from steppe.runners.engines.distributed.plan import rollouts_per_push, worker_engine, worker_spec
from steppe.runners.setup import make_engine
from steppe.specs.learning import optimizer as optimizers
from steppe.specs.spaces import Box, Discrete

MULTI = {"type": "multi_step", "num_steps": 5, "optimizer": "adam"}
POLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
OPTIMIZERS = get_args(get_args(optimizers._Optimizers)[0])


def spec_of(agent, environment=POLE, **fields):
    return experiment(environment, agent, run_mode="distributed", **fields)


REFUSED_AGENTS = {
    "random": 'agent "random" learns nothing that workers could share; use run_mode "single"',
    "constant": 'agent "constant" learns nothing that workers could share; use run_mode "single"',
    "td3": 'the actor of agent "td3" waits for its critics, .*; use "sac" or "ddpg", or run_mode "async"',
    "trpo": 'agent "trpo" keeps each step within a divergence of one policy, .*; use "ppo", or run_mode "single"',
}
CONTINUOUS = {"ddpg", "td3", "sac", "naf"}


@pytest.mark.parametrize("agent", agents.names())
def test_every_agent_is_accepted_or_refused_with_a_reason_and_a_way_out(agent):
    settings = {"type": agent}
    if agent == "dqfd":
        settings["demonstrations"] = made_up_file(Box((4,)), Discrete(2))
    spec = spec_of(settings, PENDULUM if agent in CONTINUOUS else POLE, seed=None, num_envs=None)
    if agent in REFUSED_AGENTS:
        with pytest.raises(UserError, match=REFUSED_AGENTS[agent]):
            runners.check(spec)
    else:
        assert checked_engine(spec)[1] == []


WITH_ADAM = {"optimizer": "adam"}
OPTIONS = {
    "clipped_step": WITH_ADAM | {"clipping_value": 0.1},
    "multi_step": WITH_ADAM,
    "optimized_step": WITH_ADAM,
    "subsampling_step": WITH_ADAM,
}
REFUSED_OPTIMIZERS = {
    "natural_gradient": 'optimizer "natural_gradient" keeps each step within a divergence of one policy',
    "optimized_step": 'optimizer "optimized_step" searches along each step for a lower loss',
}


@pytest.mark.parametrize("optimizer", [get_args(kind.model_fields["type"].annotation)[0] for kind in OPTIMIZERS])
def test_every_optimiser_is_accepted_or_refused_with_a_reason_and_a_way_out(optimizer):
    agent = {"type": "vpg", "optimizer": {"type": optimizer} | OPTIONS.get(optimizer, {})}
    if optimizer == "natural_gradient":
        agent["baseline_optimizer"] = "adam"
    spec = spec_of(agent, seed=None)
    if optimizer in REFUSED_OPTIMIZERS:
        way_out = 'use an optimizer such as "adam", or run_mode "single"'
        with pytest.raises(UserError, match=f"{REFUSED_OPTIMIZERS[optimizer]}.*{way_out}"):
            runners.check(spec)
    else:
        assert checked_engine(spec)[1] == []


def test_optimisers_that_take_different_numbers_of_steps_are_refused():
    with pytest.raises(UserError, match="different numbers of steps"):
        runners.check(spec_of({"type": "ppo", "baseline_optimizer": MULTI}))


@pytest.mark.parametrize("synchronous", [False, True])
def test_rollouts_of_so_many_episodes_are_accepted(synchronous):
    agent = {"type": "ppo", "rollout_episodes": 2}
    assert checked_engine(spec_of(agent, num_envs=1, seed=None, distributed={"synchronous": synchronous}))[1] == []


def test_settings_without_effect_get_notices():
    notices = checked_engine(spec_of("ppo", distributed={"synchronous": True, "max_staleness": 3, "overlap": True}))[1]
    assert [notice.partition(" ")[0] for notice in notices] == ["distributed.max_staleness", "distributed.overlap"]
    assert any("runs with the same seed differ" in notice for notice in checked_engine(spec_of("ppo", seed=1))[1])


def test_shares_of_a_gpu_that_are_too_small_are_refused_before_anything_starts():
    with pytest.raises(UserError, match="would put 4 workers on a GPU, and no more than 3 share one"):
        runners.check(spec_of("ppo", num_workers=4, ray={"gpus_per_worker": 0.25}))


@pytest.mark.parametrize("token", ["", "known" * 8])
def test_a_missing_token_for_other_machines_gets_a_notice(monkeypatch, tmp_path, token):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    notices = checked_engine(spec_of("ppo", seed=None, ray={"port": 6399}))[1]
    assert [notice.partition(",")[0] for notice in notices] == (
        [] if token else ["ray.port 6399 takes in other machines"]
    )


DRIVING = """
import jax
from runs import experiment
from steppe import runners
from steppe.runners.setup import make_engine

spec = experiment("CartPole-v1", "ppo", run_mode={mode!r}, num_workers=2, ray={{"gpus_per_worker": {share}}})
{called}
print(jax.config.jax_platforms)
"""


@pytest.mark.parametrize("called", ["runners.check(spec)", "make_engine(spec).close()"])
@pytest.mark.parametrize(
    ("mode", "share", "platforms"), [("distributed", 0.5, "cpu"), ("distributed", 0, "None"), ("single", 0, "None")]
)
def test_the_driver_leaves_gpus_to_its_workers(mode, share, platforms, called):
    program = DRIVING.format(mode=mode, share=share, called=called)
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert answer.stdout.split() == [platforms], answer.stderr


def test_the_memory_is_shared_out_and_never_smaller_than_a_batch():
    def capacity(spec):
        alone = worker_spec(spec)
        return alone.agent.settings_as(agent_class(alone.agent).Settings).memory.capacity

    assert capacity(spec_of({"type": "dqn", "memory": {"capacity": 9_000}}, num_workers=3)) == 3_000
    assert capacity(spec_of({"type": "dqn", "memory": "prioritized_replay"}, num_workers=5)) == 10_000
    assert capacity(spec_of({"type": "dqn", "memory": {"capacity": 300}}, num_workers=30)) == 128


@pytest.mark.parametrize("synchronous", [False, True])
def test_each_worker_waits_for_its_share_and_the_learning_rate_falls_to_its_end(synchronous):
    agent = {"type": "dqn", "update_frequency": 10, "batch_size": 16}
    agent |= {"learning_starts": 400, "learning_rate_decay": "linear"}
    fields = {"num_envs": 1, "num_workers": 4, "total_timesteps": 10_000, "seed": None}
    alone = worker_engine(spec_of(agent, distributed={"synchronous": synchronous}, **fields)).agent
    assert alone.first_update == 100
    # Each worker has 250 rollouts of 10 timesteps and learns after those with at least 100 in its memory.
    updates = sum(10 * rollout >= 100 for rollout in range(1, 251)) * (1 if synchronous else 4)
    rate = parts_of(alone)[0].rate
    assert (rate(updates) == 0.0, rate(updates - 1) > 0.0) == (True, True)


def test_random_actions_end_when_the_workers_begin_to_learn():
    agent = {"type": "sac", "learning_starts": 400, "batch_size": 16}
    alone = worker_engine(spec_of(agent, PENDULUM, num_envs=1, num_workers=4, seed=None)).agent
    # The timesteps are those of all four workers.
    assert [float(alone.exploration(timestep, np)["epsilon"]) for timestep in (399, 400)] == [1.0, 0.0]
    assert 4 * alone.first_update == 400


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
        spec_of("ppo", platform="ray", ray={"address": address})


def test_a_worker_gets_a_part_of_one_gpu_or_whole_ones():
    assert spec_of("ppo", ray={"gpus_per_worker": 0.33}).ray.gpus_per_worker == 0.33
    with pytest.raises(UserError, match="nothing in between"):
        spec_of("ppo", ray={"gpus_per_worker": 1.5})


def test_without_ray_the_extra_is_named_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(distributed, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[cluster\]"'):
        checked_engine(spec_of("ppo"))
