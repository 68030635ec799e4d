"""One suite for the updates of every algorithm, kind of network and kind of action."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from benches import DENSE, LEARNING, NETWORKS, SAMPLES, TRIED_ACTIONS, Bench, bench_of, described, named, same

from steppe.specs.learning.network import NetworkSpec

PAGE = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")


@pytest.fixture(params=LEARNING, ids=named)
def learner(request):
    return bench_of(*request.param)


def test_an_update_changes_the_parameters_and_keeps_the_form_of_the_state(learner):
    after, metrics = learner.update(learner.state, learner.experience)
    assert described(after) == described(learner.state)
    assert np.any(np.asarray(after.params) != np.asarray(learner.state.params))
    assert np.all(np.isfinite(after.params))
    assert after.updates == learner.state.updates + learner.agent.updates_per_rollout
    if learner.agent.experience == "transitions":
        priorities = metrics.pop("priorities")
        assert priorities.shape == (SAMPLES,)
        assert np.all(priorities >= 0)
    assert "loss" in metrics
    for name, value in metrics.items():
        assert value.shape == (), name
        assert np.isfinite(value), name


def test_the_page_about_run_folders_tells_of_every_metric(learner):
    table = PAGE.partition("### Metrics of agents")[2].partition("\n#")[0]
    agents_of = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, flags=re.MULTILINE))
    _, metrics = learner.update(learner.state, learner.experience)
    told = {name for name, agents in agents_of.items() if f"`{learner.agent.type}`" in agents}
    assert told | {"loss"} == metrics.keys() - {"priorities"}


def test_every_parameter_can_move(learner):
    """Some move at the first update, and within a few updates all whose gradient is not always zero."""
    state = learner.state
    for _ in range(3):
        state, _ = learner.update(state, learner.experience)
    still = np.asarray(state.params) == np.asarray(learner.state.params)
    names = learner.agent.layout.named(still)
    # The bias of a head always has a gradient, whatever the observation.
    for name, unmoved in names.items():
        if name.endswith("bias") and "head" in name and "temperature" not in name:
            assert not np.all(unmoved), name


def test_the_state_can_be_carried_through_a_scan(learner):
    def twice(state, experience):
        return jax.lax.scan(lambda state, _: learner.agent.update(state, experience), state, None, length=2)

    state, _ = jax.eval_shape(twice, learner.state, learner.experience)
    assert described(state) == described(learner.state)


def test_the_same_update_gives_the_same_bits(learner):
    first, again = (learner.update(learner.state, learner.experience)[0] for _ in range(2))
    assert same(first, again)


def test_gradients_and_apply_are_what_other_run_modes_can_take_apart(learner):
    agent, batch = learner.agent, learner.experience
    if agent.experience == "trajectories":
        batch = jax.eval_shape(agent.prepare, learner.state, batch)
    gradients, _ = jax.eval_shape(agent.gradients, learner.state, batch)
    assert gradients.shape == learner.state.params.shape
    assert gradients.dtype == np.float32
    after = jax.eval_shape(agent.apply, learner.state, gradients)
    assert described(after) == described(learner.state)


@pytest.mark.parametrize("agent", ["dqn", "dqfd", "pqn", "naf"])
def test_dropout_is_drawn_anew_for_each_update(monkeypatch, agent):
    layers = [*DENSE.root, {"type": "dropout", "rate": 0.5}, {"type": "dense", "size": 4}]
    monkeypatch.setitem(NETWORKS, "vector", NetworkSpec(layers))
    bench = Bench(agent, TRIED_ACTIONS[agent][0], "vector")
    batch = bench.experience
    if agent == "pqn":
        batch = jax.jit(bench.agent.prepare)(bench.state, batch)
    loss = jax.jit(bench.agent.loss)
    losses = [
        loss(bench.state.params, bench.state._replace(updates=np.int32(update)), batch)[0].item()
        for update in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("agent", ["random", "constant"])
def test_agents_that_do_not_learn_keep_their_state(agent):
    bench = bench_of(agent, "discrete", "vector", ())
    after, metrics = bench.agent.update(bench.state, None)
    assert same(after, bench.state)
    assert metrics == {}
    assert bench.agent.updates_per_rollout == 0
