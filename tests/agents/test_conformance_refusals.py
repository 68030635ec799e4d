"""Agents refuse spaces, networks and settings that they cannot learn with."""

from __future__ import annotations

import pytest
from benches import REQUIRED, SETTINGS, TRIED_ACTIONS, Bench

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.errors import SpecError, UserError
from steppe.specs.describing.docstrings import sentence_of
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.spaces import Box, Discrete


@pytest.mark.parametrize("agent", ["ddpg", "td3", "sac", "naf"])
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("discrete", 'needs continuous actions, but Test-v0 has discrete ones; use "dqn" or "ppo"'),
        ("multi-discrete", 'needs continuous actions, but Test-v0 has discrete ones; use "dqn" or "ppo"'),
        ("unbounded box", 'needs actions with bounds, but those of Test-v0 have none; use "ppo"'),
    ],
)
def test_agents_for_continuous_actions_refuse_others(agent, action, reason):
    with pytest.raises(UserError) as caught:
        Bench(agent, action, "vector")
    assert str(caught.value) == f'agent "{agent}" {reason}'


@pytest.mark.parametrize("agent", ["dqn", "ddqn", "dqn_nstep", "dqfd", "qr_dqn", "pqn"])
def test_agents_for_discrete_actions_refuse_others(agent):
    with pytest.raises(UserError) as caught:
        Bench(agent, "box", "vector")
    expected = f'agent "{agent}" needs discrete actions, but Test-v0 has continuous actions; use "sac", "td3" or "ppo"'
    assert str(caught.value) == expected
    context = AgentContext(Box((3,)), Box((2,), (0.0,), (5.0,), "int32"), num_envs=32)
    with pytest.raises(UserError, match="but the environment has whole numbers in a box as actions"):
        agents.make(AgentSpec.model_validate({"type": agent, **REQUIRED.get(agent, {})}), context)


@pytest.mark.parametrize("agent", ["dqn", "dqfd", "qr_dqn", "pqn", "ddpg", "td3", "sac", "naf"])
@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_agents_that_carry_no_state_refuse_recurrent_networks(agent, network):
    with pytest.raises(SpecError, match=f"{network}.* keeps a state from timestep to timestep.*such as ppo$"):
        Bench(agent, TRIED_ACTIONS[agent][0], network)


@pytest.mark.parametrize(
    ("agent", "written", "meant"),
    [
        ("random", "horizn", "horizon"),
        ("constant", "acton", "action"),
        ("vpg", "discout", "discount"),
        ("a2c", "gae_lamda", "gae_lambda"),
        ("ppo", "epoch", "epochs"),
        ("trpo", "cg_dampng", "cg_damping"),
        ("impala", "ratio_clp", "ratio_clip"),
        ("dqn", "doubel", "double"),
        ("dqfd", "expert_margn", "expert_margin"),
        ("qr_dqn", "quantile", "quantiles"),
        ("pqn", "trace_lamda", "trace_lambda"),
        ("ddpg", "explorations", "exploration"),
        ("td3", "policy_dely", "policy_delay"),
        ("sac", "temprature", "temperature"),
        ("naf", "batchsize", "batch_size"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_word(checked, agent, written, meant):
    with pytest.raises(SpecError, match=f'^unknown field "{written}".*; did you mean "{meant}"\\?'):
        checked(agent, **REQUIRED.get(agent, {}), **{written: 1})


@pytest.mark.parametrize("agent", SETTINGS)
def test_a_setting_of_the_wrong_type_is_refused(checked, agent):
    written = "horizon" if "horizon" in agents.settings_class(agent).model_fields else "update_frequency"
    for wrong in ("many", 0, -3, 1.5, True):
        with pytest.raises(SpecError, match=written):
            checked(agent, **REQUIRED.get(agent, {}), **{written: wrong})


def test_an_unknown_agent_is_refused_with_the_nearest_word():
    with pytest.raises(SpecError, match=r'^unknown agent "pppo".*did you mean "ppo"\?.*"steppe agents" lists them'):
        agents.make(AgentSpec.model_validate("pppo"), AgentContext(Box((3,)), Discrete(2)))


@pytest.mark.parametrize("agent", SETTINGS)
def test_every_setting_says_what_it_is(agent):
    for name, field in agents.settings_class(agent).model_fields.items():
        assert sentence_of(agents.settings_class(agent), name), name
        assert field.is_required() == (name in REQUIRED.get(agent, {})), name
