"""The notices of `experiment new` for an experiment in threads."""

from __future__ import annotations

import pytest
from runs import TINY_DQN, experiment

from steppe import runners
from steppe.errors import UserError


def checked(agent, environment="CartPole-v1", **fields):
    return runners.check(experiment(environment, agent, run_mode="multi-threaded", **fields))


def test_different_final_epsilons_get_a_notice():
    (notice,) = checked(TINY_DQN, num_workers=2)
    assert "0.1 (40%), 0.01 (30%), 0.5 (30%)" in notice
    assert "final_epsilon" in notice


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_a_suitable_experiment_gets_no_notice(backend):
    assert checked("a3c", {"id": "CartPole-v1", "backend": backend}, num_workers=2) == []
    assert checked(TINY_DQN | {"exploration": {"type": "constant", "epsilon": 0.1}}, num_workers=2) == []
    assert checked(TINY_DQN, num_workers=1) == []


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_unsuitable_agents_are_refused_before_they_start(backend):
    with pytest.raises(UserError, match=r'agent "trpo" .* use "ppo", or run_mode "single"'):
        checked("trpo", {"id": "CartPole-v1", "backend": backend})
