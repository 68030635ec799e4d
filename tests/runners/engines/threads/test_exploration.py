"""Workers explore to different degrees, unless the user has set how much."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.runners.engines.threads.exploration import (
    CHANCES,
    FINAL_EPSILONS,
    explores_apart,
    final_epsilon_of,
    with_final_epsilon,
)
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete


def make(type="dqn", deterministic=False, **settings):
    situation = AgentContext(
        Box((3,)), Discrete(2), NetworkSpec([{"type": "dense", "size": 4}]), num_envs=2, deterministic=deterministic
    )
    return agents.make(AgentSpec.model_validate({"type": type, **settings}), situation)


def test_final_epsilons_are_drawn_as_often_as_the_paper_says():
    drawn = Counter(final_epsilon_of(seed, worker) for seed in range(300) for worker in range(10))
    for end, chance in zip(FINAL_EPSILONS, CHANCES, strict=True):
        assert drawn[end] / 3000 == pytest.approx(chance, abs=0.05)


def test_a_worker_draws_the_same_again_when_the_run_is_resumed():
    assert [final_epsilon_of(5, worker) for worker in range(20)] == [
        final_epsilon_of(5, worker) for worker in range(20)
    ]
    assert len({final_epsilon_of(5, worker) for worker in range(20)}) == 3


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (make(), True),
        (make("pqn"), True),
        (make(exploration={"type": "epsilon_anneal", "timesteps": 500}), True),
        (make(exploration={"type": "epsilon_anneal", "final_epsilon": 0.02, "timesteps": 9}), True),
        (make("pqn", exploration={"type": "epsilon_anneal", "final_epsilon": 0.02}), True),
        (make(exploration={"type": "epsilon_anneal", "final_epsilon": 0.05}), False),
        (make(exploration={"type": "epsilon_anneal", "final_epsilon": 0.1}), False),
        (make(exploration={"type": "linear_decay", "final_value": 0.05}), False),
        (make(exploration={"type": "epsilon_decay"}), False),
        (make(exploration={"type": "constant", "epsilon": 0.1}), False),
        (make(noisy=True), False),
        (make(deterministic=True), False),
        (make("a3c"), False),
    ],
)
def test_workers_draw_final_epsilons_only_if_the_user_gave_none(agent, expected):
    assert explores_apart(agent, 2) is expected
    assert explores_apart(agent, 1) is False


def test_the_share_of_random_actions_falls_to_the_workers_own_end():
    agent = make(exploration={"type": "epsilon_anneal", "timesteps": 100})
    own = with_final_epsilon(agent, 0.5)
    assert [float(own.exploration(t, np)["epsilon"]) for t in (0, 50, 200)] == [1.0, 0.75, 0.5]
    traced = jax.jit(lambda end, t: with_final_epsilon(agent, end).exploration(t, jnp)["epsilon"])
    assert float(traced(0.01, 1000)) == pytest.approx(0.01)
    assert float(agent.exploration(1000, np)["epsilon"]) == pytest.approx(0.1)
