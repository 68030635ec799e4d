"""What every agent must do, in every space it allows: one suite for all of them."""

from __future__ import annotations

from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe import agents
from steppe.agents import normalizers
from steppe.agents._base import Situation, TrainState, Trajectory, Transitions
from steppe.errors import SpecError, UserError
from steppe.specs.agent import AgentSpec
from steppe.specs.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

ENVS = 4
SAMPLES = 16
"""How many observations are acted on at once, always: another number would be another program to compile."""
DENSE = NetworkSpec([{"type": "dense", "size": 8, "activation": "tanh"}])
CONVOLUTION = NetworkSpec(
    [
        {"type": "conv2d", "size": 4, "window": 3, "stride": 2},
        {"type": "flatten"},
        {"type": "dense", "size": 8, "activation": "relu"},
    ]
)
NETWORKS = {
    "image": CONVOLUTION,
    "lstm": NetworkSpec([{"type": "lstm", "size": 5}]),
    "gru": NetworkSpec([*DENSE.root, {"type": "gru", "size": 5}]),
}
OBSERVATIONS = {
    "vector": Box((3,)),
    "normalised": Box((3,)),
    "image": Box((12, 12, 1), (0.0,), (255.0,), "uint8"),
    "one number": Discrete(5, start=2),
    "several numbers": MultiDiscrete((3, 4)),
    "lstm": Box((3,)),
    "gru": Box((3,)),
}
ACTIONS = {
    "discrete": Discrete(3),
    "discrete from 2": Discrete(3, start=2),
    "multi-discrete": MultiDiscrete((2, 3)),
    "box": Box((2,), (-1.0, -0.1), (1.0, 0.2)),
    "box of two axes": Box((2, 2), (-3.0,), (1.0,)),
    "unbounded box": Box((2, 2)),
    "yes or no": MultiDiscrete((2, 2)),
}
ONE_OF_SOME = ["discrete from 2", "multi-discrete"]
BOUNDED = ["box", "box of two axes"]

SETTINGS = {
    "random": {},
    "constant": {"action": 0},
    "vpg": {"horizon": 4},
    "a2c": {"horizon": 4},
    "a3c": {"horizon": 4},
    "ppo": {"horizon": 4, "epochs": 2, "minibatches": 2},
    "trpo": {"horizon": 4, "cg_max_iterations": 3},
    "impala": {"horizon": 4},
    "dqn": {"batch_size": SAMPLES, "dueling": True, "exploration": {"type": "constant", "constant": 0.3}},
    "ddqn": {"batch_size": SAMPLES},
    "dqn_nstep": {"batch_size": SAMPLES},
    "qr_dqn": {"batch_size": SAMPLES, "quantiles": 5, "noisy": True, "dueling": True},
    "pqn": {"horizon": 4, "epochs": 2, "minibatches": 2, "dueling": True},
    "ddpg": {"batch_size": SAMPLES, "learning_starts": 0},
    "td3": {"batch_size": SAMPLES, "learning_starts": 0, "policy_delay": 1},
    "sac": {"batch_size": SAMPLES, "learning_starts": 0},
    "naf": {"batch_size": SAMPLES, "learning_starts": 0},
}
TRIED_ACTIONS = {
    "random": list(ACTIONS),
    "constant": list(ACTIONS),
    "ppo": list(ACTIONS),
    "vpg": ["unbounded box"],
    "a2c": ["multi-discrete"],
    "a3c": ["discrete from 2"],
    "trpo": ["discrete from 2", "box"],
    "impala": ["box"],
    "dqn": ["discrete", *ONE_OF_SOME],
    "ddqn": ["discrete from 2"],
    "dqn_nstep": ["multi-discrete"],
    "qr_dqn": ONE_OF_SOME,
    "pqn": ONE_OF_SOME,
    "ddpg": BOUNDED,
    "td3": BOUNDED,
    "sac": BOUNDED,
    "naf": BOUNDED,
}
BETA, BERNOULLI = (("distribution", "beta"),), (("distribution", "bernoulli"),)
# Every action space with one kind of observation, every kind of observation with one action space.
CASES = [(agent, action, "vector", ()) for agent, spaces in TRIED_ACTIONS.items() for action in spaces]
CASES += [
    (agent, TRIED_ACTIONS[agent][0], observation, ())
    for agent in ("random", "ppo", "dqn", "pqn", "sac", "naf")
    for observation in ("normalised", "image", "one number", "several numbers")
]
CASES += [("vpg", "discrete from 2", "lstm", ()), ("impala", "discrete from 2", "lstm", ())]
CASES += [("ppo", "box", "gru", ()), ("a2c", "multi-discrete", "gru", (("share_network", True),))]
CASES += [("ppo", "box", "vector", BETA), ("ppo", "yes or no", "vector", BERNOULLI)]
CASES += [("td3", "box", "normalised", (("exploration", "ornstein_uhlenbeck"),))]
# Updates take long to compile: each algorithm, each kind of network and each kind of action once.
LEARNING = [
    ("vpg", "unbounded box", "vector", ()),
    ("a2c", "multi-discrete", "gru", (("share_network", True),)),
    ("ppo", "box", "gru", ()),
    ("ppo", "box", "vector", BETA),
    ("ppo", "discrete", "image", ()),
    ("trpo", "discrete from 2", "vector", ()),
    ("impala", "discrete from 2", "lstm", ()),
    ("dqn", "discrete", "normalised", ()),
    ("qr_dqn", "multi-discrete", "vector", ()),
    ("pqn", "multi-discrete", "vector", ()),
    ("ddpg", "box of two axes", "vector", ()),
    ("td3", "box", "normalised", (("exploration", "ornstein_uhlenbeck"),)),
    ("sac", "box", "vector", ()),
    ("sac", "box", "image", ()),
    ("naf", "box of two axes", "vector", ()),
]
LEARNERS = set(SETTINGS) - {"random", "constant"}
SAME_ALGORITHM = {"a3c": "a2c", "ddqn": "dqn", "dqn_nstep": "dqn"}
"""Names that differ from another agent in their settings only."""


class Bench:
    """An agent in one situation, with all that is compiled of it."""

    def __init__(self, agent, action, observation, settings=()):
        self.action, self.observation = ACTIONS[action], OBSERVATIONS[observation]
        situation = Situation(
            observation=self.observation,
            action=self.action,
            network=NETWORKS.get(observation, DENSE),
            num_envs=ENVS,
            environment="Test-v0",
            normalize_observations=observation == "normalised",
        )
        spec = AgentSpec.model_validate({"type": agent, **SETTINGS[agent], **dict(settings)})
        self.agent = agents.make(spec, situation)
        self.act = jax.jit(self.agent.act)
        self.update = jax.jit(self.agent.update)

    @cached_property
    def state(self) -> TrainState:
        """Parameters that prefer some actions to others, and statistics where observations are normalised."""
        state = self.agent.init(jax.random.key(1))
        noise = np.random.default_rng(1).normal(0.0, 0.5, state.params.shape).astype(np.float32)
        state = state._replace(params=state.params + noise)
        if self.agent.normalizes_observations:
            seen = np.random.default_rng(2).normal(5.0, 3.0, (8, ENVS, 3)).astype(np.float32)
            state = state._replace(observations=normalizers.merge(state.observations, seen))
        return state

    @cached_property
    def observations(self):
        """[SAMPLES, ...] as environments give them."""
        space, rng, lead = self.observation, np.random.default_rng(3), (SAMPLES,)
        match space:
            case Discrete():
                return rng.integers(space.start, space.start + space.n, lead).astype(np.int32)
            case MultiDiscrete():
                return np.stack([rng.integers(0, n, lead) for n in space.nvec], -1).astype(np.int32)
        if space.dtype == "uint8":
            return rng.integers(0, 256, (*lead, *space.shape)).astype(np.uint8)
        return rng.normal(4.0, 3.0, (*lead, *space.shape)).astype(np.float32)

    @cached_property
    def internals(self):
        """[SAMPLES, ...]: what the actor remembers in the middle of episodes."""
        rng = np.random.default_rng(5)
        initial = self.agent.initial_internals((SAMPLES,))
        return jax.tree.map(lambda leaf: rng.normal(0.0, 0.3, leaf.shape).astype(np.float32), initial)

    def draw(self, seed=3):
        """(actions, outputs, internals) with noise."""
        noise = self.agent.draw_noise(jax.random.key(seed), (SAMPLES,))
        return self.act(self.agent.acting(self.state), self.observations, noise, 5, self.internals)

    @cached_property
    def experience(self):
        """What the agent learns from, as a runner or a memory gives it."""
        rng = np.random.default_rng(4)
        actions, outputs, following_internals = self.draw()
        rewards = rng.normal(size=SAMPLES).astype(np.float32)
        following = self.observations[::-1]
        if self.agent.experience == "transitions":
            discounts = rng.choice([0.0, 0.9], SAMPLES).astype(np.float32)
            return Transitions(self.observations, actions, rewards, discounts, following, np.ones_like(rewards))
        terminated, truncated = rng.random((2, SAMPLES)) < 0.2
        flat = Trajectory(
            self.observations,
            actions,
            rewards,
            terminated,
            truncated,
            following,
            outputs,
            running_returns=rewards,
            internals=self.internals,
            next_internals=following_internals,
        )
        return jax.tree.map(lambda leaf: leaf.reshape(-1, ENVS, *leaf.shape[1:]), flat)


bench_of = lru_cache(maxsize=None)(Bench)


def _named(case):
    agent, action, observation, settings = case
    return "-".join([agent, action, observation, *(str(value) for _, value in settings)])


@pytest.fixture(params=CASES, ids=_named)
def bench(request):
    return bench_of(*request.param)


@pytest.fixture(params=LEARNING, ids=_named)
def learner(request):
    return bench_of(*request.param)


def stored_shape(space):
    return (space.size,) if isinstance(space, Box) else space.shape


def described(tree):
    """Structure, shapes and dtypes."""
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def same(first, second):
    """Whether two states agree bit for bit."""
    plain = [jax.tree.map(_plain, tree) for tree in (first, second)]
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, plain), strict=True))


def _plain(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_the_first_state_is_one_vector_of_parameters_with_nothing_learned(bench):
    state = bench.agent.init(jax.random.key(0))
    assert state.params.ndim == 1
    assert state.params.dtype == np.float32
    assert state.target.shape in (state.params.shape, (0,))
    assert state.updates == 0
    assert state.updates.dtype == np.int32
    assert np.all(np.isfinite(state.params))
    if bench.agent.normalizes_observations:
        assert state.observations.mean.shape == bench.observation.shape
    assert described(state) == described(bench.agent.init(jax.random.key(1)))


def test_the_same_key_gives_the_same_state_and_another_key_another(bench):
    first, again, other = (bench.agent.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_drawn_actions_have_the_shape_that_the_learner_stores(bench):
    noise = bench.agent.draw_noise(jax.random.key(0), (2, ENVS))
    assert noise.shape == (2, ENVS, sum(columns for _, columns in bench.agent.noise))
    actions, outputs, _ = bench.draw()
    assert actions.shape == (SAMPLES, *stored_shape(bench.action))
    assert actions.dtype == (np.float32 if isinstance(bench.action, Box) else np.int32)
    assert outputs.shape[:-1] == (SAMPLES,)
    assert outputs.dtype == np.float32
    if not isinstance(bench.action, Box):
        sizes = bench.action.n if isinstance(bench.action, Discrete) else np.array(bench.action.nvec)
        assert np.all((actions >= 0) & (actions < sizes))


def test_what_an_actor_remembers_keeps_its_form(bench):
    initial = bench.agent.initial_internals((SAMPLES,))
    assert all(leaf.shape[0] == SAMPLES for leaf in jax.tree.leaves(initial))
    for lead in ((), (3,), (2, 3)):
        for name, leaf in bench.agent.initial_internals(lead).items():
            assert leaf.shape == (*lead, *initial[name].shape[1:])
    assert described(bench.draw()[2]) == described(initial)


def test_actions_reach_the_environment_in_its_shape_and_bounds(bench):
    actions = bench.draw()[0]
    taken = np.asarray(bench.agent.to_environment(actions))
    assert taken.shape == (SAMPLES, *bench.action.shape)
    match bench.action:
        case Box():
            assert taken.dtype == np.float32
            low, high = bench.action.bounds()
            assert np.all((taken >= low) & (taken <= high))
        case Discrete(n, start):
            assert taken.dtype == np.int32
            assert np.all((taken >= start) & (taken < start + n))
            np.testing.assert_array_equal(taken - start, actions)
        case MultiDiscrete(nvec):
            assert taken.dtype == np.int32
            assert np.all((taken >= 0) & (taken < np.array(nvec)))


def test_actions_drawn_with_the_same_noise_are_the_same(bench):
    first, again, other = (bench.draw(seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    if bench.agent.type not in ("constant", "ddqn", "dqn_nstep", "qr_dqn"):
        assert np.any(np.asarray(first) != np.asarray(other))


def test_each_environment_is_acted_in_by_itself(bench):
    noise = bench.agent.draw_noise(jax.random.key(0), (SAMPLES,))
    acting, observations, internals = bench.agent.acting(bench.state), bench.observations, bench.internals
    together = bench.act(acting, observations, noise, 5, internals)
    turned = bench.act(acting, observations[::-1], noise[::-1], 5, jax.tree.map(lambda leaf: leaf[::-1], internals))
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(turned), strict=True):
        np.testing.assert_allclose(one, other[::-1], rtol=1e-5, atol=1e-6)


def test_greedy_actions_are_those_of_the_exported_policy(bench):
    observations, agent = bench.observations, bench.agent
    policy = agent.policy(bench.state, 7)
    assert policy.description.agent == agent.type
    assert policy.description.timestep == 7
    if agent.always_draws:
        # A random policy stays random when it is asked for its best action.
        assert policy.act(observations).shape == (SAMPLES, *bench.action.shape)
        return
    # Noise in the parameters, which an agent explores with, is no part of its policy.
    acting = agent.acting(bench.state)._replace(params=bench.state.params)
    internals = jax.tree.map(np.asarray, agent.initial_internals((SAMPLES,)))
    noise = agent.draw_noise(jax.random.key(3), (SAMPLES,))
    outputs = np.asarray(bench.act(acting, observations, noise, 5, internals)[1])
    actions, _ = agent.choose(outputs, None, 0, internals, 0.0, np)
    taken = np.asarray(agent.to_environment(jnp.asarray(actions)))
    np.testing.assert_allclose(policy.act(observations), taken, rtol=1e-4, atol=1e-4)
    if agent.type in LEARNERS:
        own, _ = policy.outputs_after(observations, policy.initial_state((SAMPLES,)))
        np.testing.assert_allclose(own, outputs, rtol=1e-4, atol=1e-4)
        # The comparison would say little if every observation were alike.
        assert len(np.unique(outputs, axis=0)) > 1


def test_acting_in_numpy_is_acting_in_jax(bench):
    agent, state = bench.agent, bench.state
    if not agent.acts_in_numpy:
        pytest.skip("says itself that it does not")
    noise = np.asarray(agent.draw_noise(jax.random.key(3), (SAMPLES,)))
    acting = agent.acting(state)
    policy = agent.policy(state._replace(params=acting.params), 0)
    own = {name: leaf for name, leaf in bench.internals.items() if name in policy.initial_state()}
    outputs, after = policy.outputs_after(bench.observations, own)
    log_std = policy.tensors.get("head/log_std", 0.0)
    actions, chosen = agent.choose(outputs, noise, 5, bench.internals | after, log_std, np)
    assert isinstance(actions, np.ndarray)
    expected, expected_outputs, expected_internals = bench.draw(3)
    if agent.type in LEARNERS:
        np.testing.assert_allclose(outputs, expected_outputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-4)
    assert chosen.keys() == expected_internals.keys()
    for name, leaf in chosen.items():
        np.testing.assert_allclose(leaf, expected_internals[name], rtol=1e-4, atol=1e-5)


def test_an_exported_policy_keeps_its_own_copy(bench):
    policy = bench.agent.policy(bench.state, 0)
    before = {name: tensor.copy() for name, tensor in policy.tensors.items()}
    for tensor in bench.agent.policy_tensors(bench.state).values():
        tensor += 1.0 if tensor.dtype == np.float32 else 1
    for name, tensor in policy.tensors.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_an_update_changes_the_parameters_and_keeps_the_form_of_the_state(learner):
    after, metrics = learner.update(learner.state, learner.experience)
    assert described(after) == described(learner.state)
    assert np.any(np.asarray(after.params) != np.asarray(learner.state.params))
    assert np.all(np.isfinite(after.params))
    assert after.updates == learner.state.updates + learner.agent.updates_per_experience
    if learner.agent.experience == "transitions":
        priorities = metrics.pop("priorities")
        assert priorities.shape == (SAMPLES,)
        assert np.all(priorities >= 0)
    assert "loss" in metrics
    for name, value in metrics.items():
        assert value.shape == (), name
        assert np.isfinite(value), name


def test_every_parameter_can_move(learner):
    """Some at the first update, all of them (but those that the batch leaves alone) within a few."""
    state = learner.state
    for _ in range(3):
        state, _ = learner.update(state, learner.experience)
    still = np.asarray(state.params) == np.asarray(learner.state.params)
    names = learner.agent.layout.named(still)
    # A head's bias, which no observation can switch off, moves in every network that learns at all.
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
        prepare = agent.prepare if hasattr(agent, "prepare") else agent._prepare
        batch = jax.eval_shape(prepare, learner.state, batch)
    gradients, _ = jax.eval_shape(agent.gradients, learner.state, batch)
    assert gradients.shape == learner.state.params.shape
    assert gradients.dtype == np.float32
    after = jax.eval_shape(agent.apply, learner.state, gradients)
    assert described(after) == described(learner.state)


def test_acting_needs_only_the_acting_part_of_the_state(bench):
    acting = bench.agent.acting(bench.state)
    assert set(acting._fields) == {"params", "observations"}


@pytest.mark.parametrize("agent", ["random", "constant"])
def test_agents_that_do_not_learn_keep_their_state(agent):
    bench = bench_of(agent, "discrete", "vector", ())
    after, metrics = bench.agent.update(bench.state, None)
    assert same(after, bench.state)
    assert metrics == {}
    assert bench.agent.updates_per_experience == 0


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


@pytest.mark.parametrize("agent", ["dqn", "ddqn", "dqn_nstep", "qr_dqn", "pqn"])
def test_agents_for_discrete_actions_refuse_others(agent):
    with pytest.raises(UserError) as caught:
        Bench(agent, "box", "vector")
    expected = f'agent "{agent}" needs discrete actions, but Test-v0 has continuous actions; use "sac", "td3" or "ppo"'
    assert str(caught.value) == expected
    situation = Situation(Box((3,)), Box((2,), (0.0,), (5.0,), "int32"), num_envs=32)
    with pytest.raises(UserError, match="but the environment has whole numbers in a box as actions"):
        agents.make(AgentSpec.model_validate(agent), situation)


@pytest.mark.parametrize("agent", ["dqn", "qr_dqn", "pqn", "ddpg", "td3", "sac", "naf"])
@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_agents_that_carry_no_state_refuse_recurrent_networks(agent, network):
    with pytest.raises(SpecError, match=f"{network}.* keeps a state from timestep to timestep.*such as ppo$"):
        Bench(agent, TRIED_ACTIONS[agent][0], network)


@pytest.mark.parametrize("agent", ["dqn", "pqn", "naf"])
def test_dropout_is_drawn_anew_for_each_update(monkeypatch, agent):
    layers = [*DENSE.root, {"type": "dropout", "rate": 0.5}, {"type": "dense", "size": 4}]
    monkeypatch.setitem(NETWORKS, "vector", NetworkSpec(layers))
    bench = Bench(agent, TRIED_ACTIONS[agent][0], "vector")
    batch = bench.experience
    if agent == "pqn":
        batch = jax.jit(bench.agent._prepare)(bench.state, batch)
    loss = jax.jit(bench.agent.loss)
    losses = [
        loss(bench.state.params, bench.state._replace(updates=np.int32(update)), batch).item() for update in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]


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
        checked(agent, **{written: 1})


@pytest.mark.parametrize("agent", SETTINGS)
def test_a_setting_of_the_wrong_type_is_refused(checked, agent):
    written = "horizon" if "horizon" in agents.settings_class(agent).model_fields else "update_frequency"
    for wrong in ("many", 0, -3, 1.5, True, None):
        with pytest.raises(SpecError, match=written):
            checked(agent, **{written: wrong})


def test_an_unknown_agent_is_refused_with_the_nearest_word():
    with pytest.raises(SpecError, match=r'^unknown agent "pppo".*did you mean "ppo"\?.*"steppe agents" lists them'):
        agents.make(AgentSpec.model_validate("pppo"), Situation(Box((3,)), Discrete(2)))


def test_this_suite_holds_every_agent():
    # dqfd cannot be made without a file of demonstrations: it has a suite of its own.
    every = set(agents.names()) - {"dqfd"}
    assert set(SETTINGS) == set(TRIED_ACTIONS) == every
    assert {agent for agent, *_ in LEARNING} == LEARNERS - set(SAME_ALGORITHM)
    for name, other in SAME_ALGORITHM.items():
        derived, algorithm = (agents.agent_class(AgentSpec.model_validate(each)) for each in (name, other))
        assert issubclass(derived, algorithm)
        assert not {"update", "gradients", "apply", "act", "losses"} & set(vars(derived))


@pytest.mark.parametrize("agent", SETTINGS)
def test_every_setting_says_what_it_is(agent):
    for name, field in agents.settings_class(agent).model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
