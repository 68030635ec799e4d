"""Deep Q-learning from demonstrations against its losses in NumPy, transition by transition."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from demonstrated import made_up

from steppe.agents.core.normalizers import merge
from steppe.errors import SpecError, UserError
from steppe.memories import Following
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

FOUR = Discrete(4)
SIZE = 12


@pytest.fixture
def make_dqfd(make_agent, tmp_path):
    """make_dqfd(action_space, observation=..., ...): an agent with random demonstrations."""

    def make(action=FOUR, observation=Box((3,)), shown=None, **settings):  # noqa: B008
        shown = made_up(observation, action) if shown is None else shown
        path = shown.save(tmp_path / "good.safetensors")
        settings = {"batch_size": SIZE, **settings}
        return make_agent("dqfd", action, demonstrations=str(path), observation=observation, **settings)

    return make


def batch_of(random_transitions, action, single=True, demonstrated=True, seed=0):
    """A batch of n-step transitions with 1-step results and the mask of demonstrations."""
    rng, batch = np.random.default_rng(seed + 5), random_transitions(action, seed, SIZE)
    following = Following(
        rewards=rng.normal(0.0, 2.0, SIZE).astype(np.float32),
        discounts=rng.choice([0.9, 0.0], SIZE).astype(np.float32),
        next_observations=rng.normal(size=(SIZE, 3)).astype(np.float32),
    )
    which = rng.random(SIZE) < 0.5
    return batch._replace(single=following if single else None, demonstrated=which if demonstrated else None)


def q_values(in_numpy, agent, vector, observations):
    """[B, options] of a network with one value for each option."""
    tensors = in_numpy.tensors(agent, vector)
    features = in_numpy.torso(tensors, "", observations)
    if not agent.settings.dueling:
        return in_numpy.dense(tensors, "head", features)
    advantages = in_numpy.dense(tensors, "head/advantage", features)
    return in_numpy.dense(tensors, "head/value", features) + advantages - advantages.mean(-1, keepdims=True)


def parts_in_numpy(in_numpy, agent, vector, state, batch):
    """(1-step errors, n-step errors, margins), each [B, choices]."""
    space, settings = agent.context.action, agent.settings
    sizes = [space.n] if isinstance(space, Discrete) else list(space.nvec)
    own = q_values(in_numpy, agent, vector, batch.observations)
    errors = {"single": np.zeros((SIZE, len(sizes))), "n_step": np.zeros((SIZE, len(sizes)))}
    margins = np.zeros((SIZE, len(sizes)))
    for name, following in (("single", batch.single), ("n_step", batch)):
        if following is None:
            continue
        target = q_values(in_numpy, agent, state.target, following.next_observations)
        online = q_values(in_numpy, agent, state.params, following.next_observations)
        for i in range(SIZE):
            start = 0
            for choice, size in enumerate(sizes):
                part = slice(start, start + size)
                best = int(np.argmax((online if settings.double else target)[i, part]))
                action = np.atleast_1d(batch.actions[i])[choice]
                worth = following.rewards[i] + following.discounts[i] * target[i, part][best]
                errors[name][i, choice] = own[i, part][action] - worth
                rivals = [own[i, part][a] + (0 if a == action else settings.expert_margin) for a in range(size)]
                margins[i, choice] = max(rivals) - own[i, part][action]
                start += size
    return errors["single"], errors["n_step"], margins


def loss_in_numpy(in_numpy, agent, vector, state, batch):
    settings = agent.settings
    single, n_step, margins = parts_in_numpy(in_numpy, agent, vector, state, batch)

    def penalty(errors):
        huber = np.where(np.abs(errors) <= 1, 0.5 * errors**2, np.abs(errors) - 0.5)
        return (huber if settings.huber else 0.5 * errors**2).mean(-1)

    each = penalty(n_step) if batch.single is None else penalty(single) + settings.n_step_weight * penalty(n_step)
    if batch.demonstrated is not None:
        each = each + settings.supervised_weight * batch.demonstrated * margins.mean(-1)
    return np.mean(batch.weights * each)


VARIANTS = {
    "all of it": (FOUR, {}, True, True),
    "dueling, without double and huber": (FOUR, {"double": False, "dueling": True, "huber": False}, True, True),
    "other weights": (FOUR, {"n_step_weight": 0.3, "supervised_weight": 2.0, "expert_margin": 0.1}, True, True),
    "several choices": (MultiDiscrete((2, 3)), {}, True, True),
    "one step only": (FOUR, {"n_step": 1}, False, True),
    "nothing demonstrated": (FOUR, {}, True, False),
}


@pytest.mark.parametrize(("action", "settings", "single", "demonstrated"), VARIANTS.values(), ids=VARIANTS.keys())
def test_loss_and_gradient_are_those_of_the_paper(
    make_dqfd, shaken, in_numpy, random_transitions, action, settings, single, demonstrated
):
    agent = make_dqfd(action, **settings)
    state, batch = shaken(agent), batch_of(random_transitions, action, single, demonstrated)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    one, several, margins = parts_in_numpy(in_numpy, agent, state.params, state, batch)
    errors = one if single else several
    np.testing.assert_allclose(metrics["priorities"], np.abs(errors).mean(-1), rtol=1e-4, atol=1e-5)
    assert metrics["td_error"].item() == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    if demonstrated:
        assert 0 < batch.demonstrated.sum() < SIZE
        assert np.any(margins > 0)
        expected = margins[batch.demonstrated].mean()
        assert metrics["supervised_loss"].item() == pytest.approx(expected, rel=1e-4)
    loss = loss_in_numpy(in_numpy, agent, state.params, state, batch)
    assert metrics["loss"].item() == pytest.approx(loss, rel=1e-4)
    slope = in_numpy.slope(lambda vector: loss_in_numpy(in_numpy, agent, vector, state, batch), state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)


def test_a_demonstrated_action_that_leads_by_the_margin_lacks_nothing(make_dqfd):
    agent = make_dqfd(expert_margin=0.5)
    values = np.array([[1.0, 0.5, 0.2, -1.0], [1.0, 0.8, 0.2, -1.0], [1.0, 1.4, 0.2, -1.0]], np.float32)[..., None]
    actions = np.zeros(3, np.int32)
    taken = agent.q.chosen(values, actions)
    np.testing.assert_allclose(agent.lacking_margin(values, taken, actions), [0.0, 0.3, 0.9], atol=1e-6)


def test_the_margin_is_of_the_mean_where_quantiles_are_learned(make_dqfd, shaken, random_transitions):
    agent = make_dqfd(quantiles=5, dueling=True)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(SIZE, 4, 5)).astype(np.float32)
    actions = rng.integers(0, 4, SIZE).astype(np.int32)
    means = values.mean(-1)
    expected = [
        max(means[i, a] + (0.8 if a != actions[i] else 0.0) for a in range(4)) - means[i, actions[i]]
        for i in range(SIZE)
    ]
    taken = agent.q.chosen(values, actions)
    np.testing.assert_allclose(agent.lacking_margin(values, taken, actions), expected, rtol=1e-5, atol=1e-6)
    _, metrics = jax.jit(agent.update)(shaken(agent), batch_of(random_transitions, FOUR))
    assert np.isfinite(metrics["loss"])


def test_noise_in_the_network_changes_the_loss_from_update_to_update(make_dqfd, shaken, random_transitions):
    agent = make_dqfd(noisy=True)
    state, batch = shaken(agent), batch_of(random_transitions, FOUR)
    losses = [float(agent.loss(state.params, state._replace(updates=np.int32(i)), batch)[0]) for i in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_demonstrations_are_kept_as_a_runner_would_have_collected_them(make_dqfd):
    action = Discrete(4, start=3)
    shown = made_up(Box((3,)), action)
    agent = make_dqfd(action, shown=shown, reward_preprocessing=[{"type": "clip", "min_value": -0.5, "max_value": 0.5}])
    kept = agent.demonstrations
    assert {leaf.shape[:2] for leaf in kept} == {(16, 1)}
    np.testing.assert_array_equal(kept.actions[:, 0], shown.arrays["actions"] - 3)
    np.testing.assert_array_equal(kept.rewards[:, 0], np.clip(shown.arrays["rewards"], -0.5, 0.5))
    for name in ("observations", "terminated", "truncated", "next_observations"):
        np.testing.assert_array_equal(getattr(kept, name)[:, 0], shown.arrays[name])


def test_demonstrations_go_through_the_agents_preprocessing(make_dqfd):
    raw = Box((3,))
    stages = PreprocessingSpec([{"type": "sequence", "length": 2}])
    preprocessing = Preprocessing(stages, raw)
    shown = made_up(raw, FOUR)
    agent = make_dqfd(shown=shown, observation=preprocessing.space, context={"preprocessing": preprocessing})
    seen, following = shown.seen_through(preprocessing)
    assert seen.shape == (16, 6)
    np.testing.assert_array_equal(agent.demonstrations.observations[:, 0], seen)
    np.testing.assert_array_equal(agent.demonstrations.next_observations[:, 0], following)


def test_normalisers_begin_with_what_was_demonstrated(make_dqfd):
    shown = made_up(Box((3,)), FOUR, episodes=(3, 2))
    context = {"normalize_observations": True, "normalize_rewards": True}
    agent = make_dqfd(shown=shown, context=context, discount=0.5)
    state = agent.init(jax.random.key(0))
    observations = shown.arrays["observations"]
    np.testing.assert_allclose(state.observations.mean, observations.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.observations.variance, observations.var(0), rtol=1e-4)
    a, b, c, d, e = shown.arrays["rewards"].tolist()
    sums = [a, b + a / 2, c + b / 2 + a / 4, d, e + d / 2]
    np.testing.assert_allclose(state.returns.variance, np.var(sums), rtol=1e-4)
    more = merge(state.observations, np.zeros((2, 2, 3), np.float32))
    assert more.samples == 9


def test_only_the_first_timesteps_are_kept_where_the_memory_is_small(make_dqfd):
    agent = make_dqfd(demo_memory_capacity=8)
    assert agent.memory.count == 8
    assert agent.demonstrations.truncated[-1, 0]
    assert make_dqfd(demo_memory_capacity=1000).memory.count == 16


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 3),
        ({"batch_size": 128}, 32),
        ({"demo_batch_size": 5}, 5),
        ({"demo_sampling_ratio": 0.5}, 6),
        ({"demo_sampling_ratio": 0.01}, 1),
    ],
)
def test_a_share_of_each_batch_is_demonstrations(make_dqfd, settings, count):
    agent = make_dqfd(**settings)
    assert agent.memory.per_batch == count
    assert agent.first_update == agent.settings.batch_size - count


def test_learning_starts_can_be_later(make_dqfd):
    assert make_dqfd(learning_starts=50).first_update == 50
    assert make_dqfd(learning_starts=50, memory={"capacity": 32}).first_update == 32


@pytest.mark.parametrize("settings", [{"demo_batch_size": SIZE}, {"demo_sampling_ratio": 0.99}, {"batch_size": 1}])
def test_demonstrations_alone_are_no_batch(make_dqfd, settings):
    with pytest.raises(SpecError, match="leave no room for what the agent sees itself; lower demo_batch_size"):
        make_dqfd(**settings)


@pytest.mark.parametrize(("ratio", "rule"), [(0.0, "it must be more than 0"), (1.0, "it must be less than 1")])
def test_a_batch_is_never_all_or_nothing(make_dqfd, ratio, rule):
    with pytest.raises(SpecError, match=f"at demo_sampling_ratio; {rule}"):
        make_dqfd(demo_sampling_ratio=ratio)


def test_without_demonstrations_the_way_to_record_some_is_told(checked):
    with pytest.raises(
        SpecError,
        match=r'^wrong settings; agent "dqfd" begins with demonstrations; record some with: '
        r"steppe record -e NAME",
    ):
        checked("dqfd")


def test_the_learning_rate_reaches_zero_after_pretraining_and_all_timesteps(make_dqfd):
    agent = make_dqfd(
        context={"total_timesteps": 80},
        num_envs=2,
        update_frequency=4,
        demo_batch_size=4,
        pretraining_updates=7,
        learning_rate_decay="linear",
        optimizer="gradient_descent",
    )
    # 10 iterations of 8 timesteps, each followed by an update.
    state = agent.init(jax.random.key(0))
    for _ in range(16):
        state = agent.apply(state, np.ones_like(state.params))
    before = np.asarray(state.params)
    state = agent.apply(state, np.ones_like(before))
    assert np.any(np.asarray(state.params) != before)
    last = agent.apply(state, np.ones_like(before))
    np.testing.assert_array_equal(last.params, state.params)


def test_demonstrations_must_be_named_and_there(make_agent, checked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r'there are no demonstrations "good.safetensors" in .*; record some with'):
        make_agent("dqfd", FOUR, demonstrations="good.safetensors")
    with pytest.raises(SpecError, match=r'unknown field "expert_margn".*; did you mean "expert_margin"'):
        checked("dqfd", demonstrations="good.safetensors", expert_margn=1.0)


def test_demonstrations_of_another_environment_are_refused(make_agent, tmp_path):
    path = made_up(Box((5,)), FOUR).save(tmp_path / "good")
    with pytest.raises(UserError, match=r"recorded in Test-v0 .*shape \(5,\), but Here-v0 has numbers of shape \(3,\)"):
        make_agent("dqfd", FOUR, demonstrations=str(path), context={"environment": "Here-v0"})


def test_continuous_actions_are_refused_before_any_file_is_read(make_agent):
    with pytest.raises(UserError, match='agent "dqfd" needs discrete actions'):
        make_agent("dqfd", Box((2,), (-1.0,), (1.0,)), demonstrations="nowhere")


def test_tensorforces_words_are_understood(checked):
    old = checked(
        "dqfd_agent",
        demonstrations="good.safetensors",
        expert_margin=0.5,
        supervised_weight=0.1,
        demo_memory_capacity=10_000,
        demo_sampling_ratio=0.2,
        update_mode={"unit": "timesteps", "batch_size": 10, "frequency": 2},
        double_q_model=True,
        huber_loss=1.0,
    )
    assert (old.expert_margin, old.supervised_weight, old.demonstrated, old.update_frequency) == (0.5, 0.1, 2, 2)


def test_the_papers_choices_are_the_defaults(checked):
    settings = checked("dqfd", demonstrations="good.safetensors")
    weights = settings.supervised_weight, settings.n_step_weight
    assert (settings.expert_margin, *weights, settings.n_step) == (0.8, 1.0, 1.0, 10)
    assert float(settings.exploration.epsilon(0, np)) == 0.01
