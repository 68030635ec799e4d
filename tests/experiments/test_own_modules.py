"""The user's own layers in experiments: training imports them, opening a run does not."""

from __future__ import annotations

import pytest
from coded_policies import write_module

from steppe import Experiment
from steppe.errors import ModuleNotAllowed


def test_a_policy_may_use_the_modules_of_the_spec_that_it_was_trained_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_module(tmp_path, "my_own_layer")
    agent = {"type": "ppo", "horizon": 16, "epochs": 1, "minibatches": 1}
    network = [{"type": "my_own_layer:Layer"}, {"type": "dense", "size": 4}]
    fields = {"network": network, "total_timesteps": 64, "num_envs": 2, "video": False}
    trained = Experiment(environment="CartPole-v1", agent=agent, **fields)
    assert trained.start().state == "completed"
    assert trained.policy().act([0.0] * 4) in (0, 1)
    opened = Experiment.open(trained.folder)
    with pytest.raises(ModuleNotAllowed, match='allow_modules="my_own_layer"'):
        opened.policy()
    assert opened.policy(allow_modules="my_own_layer").act([0.0] * 4) in (0, 1)
    assert opened.start(resume=True, total_timesteps=96).state == "completed"
