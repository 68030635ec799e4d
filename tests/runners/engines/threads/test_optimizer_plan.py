"""The plan of an agent's optimisers, and refused ones."""

from __future__ import annotations

import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.errors import UserError
from steppe.runners.engines.threads.optimizer_plan import plan_for
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

NETWORK = NetworkSpec([{"type": "dense", "size": 4}])
DISCRETE, CONTINUOUS = Discrete(2), Box((1,), (-1.0,), (1.0,))


def make(type, action=DISCRETE, total_timesteps=None, **settings):
    situation = AgentContext(Box((3,)), action, NETWORK, num_envs=4, total_timesteps=total_timesteps)
    return agents.make(AgentSpec.model_validate({"type": type, **settings}), situation)


@pytest.mark.parametrize(("agent", "batches"), [("vpg", 1), ("a2c", 1), ("a3c", 1), ("impala", 1), ("ppo", 160)])
def test_policy_gradient_agents_take_one_gradient_of_each_batch(agent, batches):
    agent = make(agent)
    plan = plan_for(agent.for_workers(3))
    assert plan.order == [(0, batch) for batch in range(batches)]
    (block,) = plan.phases[0].blocks
    assert (block.start, block.stop) == (0, agent.layout.size)


def test_a_value_network_with_an_optimizer_of_its_own_has_its_own_phase_and_part():
    multi = {"type": "multi_step", "num_steps": 3, "optimizer": "adam"}
    agent = make("ppo", epochs=1, minibatches=2, horizon=4, baseline_optimizer=multi)
    plan = plan_for(agent.for_workers(2))
    assert plan.order == [(0, 0), (1, 0), (1, 0), (1, 0), (0, 1), (1, 1), (1, 1), (1, 1)]
    policy, value = (phase.blocks[0] for phase in plan.phases)
    assert policy.start == 0
    assert policy.stop == value.start == agent.layout.start_of("value")
    assert value.stop == agent.layout.size
    assert value.rate == 1e-3


def test_actor_and_critics_step_by_one_gradient_with_an_optimizer_each():
    agent = make("td3", CONTINUOUS, learning_rate=1e-4, critic_learning_rate=1e-3)
    plan = plan_for(agent.for_workers(2))
    actor, critics = plan.phases[0].blocks
    assert (actor.start, actor.stop, critics.stop) == (0, agent.first_of_critics, agent.layout.size)
    assert (actor.rate, critics.rate) == (1e-4, 1e-3)
    assert (actor.every, critics.every) == (2, 1)


def test_the_rate_of_an_actor_that_waits_falls_with_its_own_steps():
    falling = {"learning_rate": 1.0, "learning_rate_decay": "linear", "learning_starts": 0, "batch_size": 4}
    agent = make("td3", CONTINUOUS, total_timesteps=4000, **falling)
    actor, critics = plan_for(agent.for_workers(1)).phases[0].blocks
    steps = 4000 // (agent.horizon * 4) * agent.settings.updates
    assert float(actor.rate(steps // 4)) == pytest.approx(0.5, abs=0.01)
    assert float(critics.rate(steps // 2)) == pytest.approx(0.5, abs=0.01)


def test_workers_share_the_timesteps_before_the_first_update():
    agent = make("dqn", batch_size=32, learning_starts=300)
    assert [plan_for(agent.for_workers(workers)).first_update for workers in (1, 3, 100)] == [300, 100, 32]


def test_a_falling_learning_rate_ends_with_the_last_update_of_all_workers():
    agent = make("vpg", total_timesteps=6400, horizon=16, learning_rate=1.0, learning_rate_decay="linear")
    rate = plan_for(agent.for_workers(3)).phases[0].blocks[0].rate
    assert [rate(taken) for taken in (0, 50, 100)] == [1.0, 0.5, 0.0]
    agent = make(
        "dqn",
        total_timesteps=1600,
        learning_starts=160,
        update_frequency=4,
        batch_size=16,
        learning_rate=1.0,
        learning_rate_decay="linear",
    )
    # Each of two workers waits for 80 timesteps, which are five batches of 16; the fifth learns.
    rate = plan_for(agent.for_workers(2)).phases[0].blocks[0].rate
    assert (rate(91), rate(92)) == (pytest.approx(1 / 92), 0.0)


def test_agents_that_do_not_learn_have_no_phase():
    assert plan_for(make("random").for_workers(2)).order == []


@pytest.mark.parametrize(
    ("agent", "settings", "why"),
    [
        ("trpo", {}, 'agent "trpo" keeps each step within a divergence of one policy'),
        ("vpg", {"optimizer": {"type": "optimized_step", "optimizer": "adam"}}, '"optimized_step" searches along'),
        (
            "vpg",
            {"optimizer": {"type": "natural_gradient"}, "baseline_optimizer": "adam"},
            '"natural_gradient" keeps each step within a divergence',
        ),
        ("dqn", {"optimizer": {"type": "multi_step", "optimizer": "adam"}}, "set agent.updates"),
    ],
)
def test_agents_that_need_their_own_model_are_refused_with_the_reason(agent, settings, why):
    with pytest.raises(UserError, match=why) as error:
        plan_for(make(agent, **settings).for_workers(2))
    assert 'run_mode "multi-threaded"' in str(error.value)
