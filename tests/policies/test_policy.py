"""Acting: a policy against the JAX network, and the observations that it refuses."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from policies import DENSE, MEMORY, describe, flatten, make_policy, tensors_for
from steppe.errors import SpecError, UserError
from steppe.networks import Network, apply_head
from steppe.policies.policy import Policy, tensor_shapes
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def by_jax(policy, x):
    """Features of the JAX network for normalised x."""
    tensors = policy.tensors
    if policy.description.normalizer:
        x = (x - tensors["normalizer/mean"]) / np.sqrt(tensors["normalizer/var"] + 1e-8)
        x = np.clip(x, -policy.description.normalizer["clip"], policy.description.normalizer["clip"])
    params: dict = {}
    for name, tensor in tensors.items():
        if name.startswith("torso/"):
            _, layer, parameter = name.split("/")
            params.setdefault(layer, {})[parameter] = jnp.asarray(tensor)
    return Network(policy.description.network, policy.description.observation).apply(params, x)


def head_of(policy, part=""):
    return {name: policy.tensors[f"head/{part}{name}"] for name in ("kernel", "bias")}


@pytest.mark.parametrize("normalizer", [None, {"clip": 0.5}])
def test_outputs_equal_the_jax_network(normalizer):
    policy = make_policy(normalizer=normalizer)
    x = 3 * floats(8, 4)
    np.testing.assert_allclose(policy.outputs(x), apply_head(head_of(policy), by_jax(policy, x)), atol=1e-5)


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (Box((4,)), {}),
        (Box((4,)), {"normalizer": {"clip": 0.5}}),
        (Box((4,)), {"kind": "q_values", "dueling": True}),
        (Box((4,), (0.0,), (255.0,), "uint8"), {}),
        (Box((2, 2)), {}),
        (Discrete(4), {}),
    ],
)
def test_a_single_observation_has_the_same_outputs_as_in_a_batch(space, fields):
    policy = make_policy(observation=space, **fields)
    x = np.random.default_rng(2).integers(0, 4, (6, *space.shape))
    together = policy.outputs(x)
    alone = np.concatenate([policy.outputs(x[index : index + 1]) for index in range(6)])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    assert alone.dtype == np.float32


def test_a_dueling_head_adds_the_value_to_centred_advantages():
    policy = make_policy(kind="q_values", dueling=True)
    x = floats(5, 4)
    features = by_jax(policy, x)
    value, advantage = (apply_head(head_of(policy, part), features) for part in ("value/", "advantage/"))
    expected = value + advantage - advantage.mean(-1, keepdims=True)
    np.testing.assert_allclose(policy.outputs(x), expected, atol=1e-5)
    assert policy.act(x).tolist() == np.argmax(expected, -1).tolist()


def test_earlier_outputs_are_not_overwritten_by_later_ones():
    policy = make_policy()
    first = policy.outputs(floats(3, 4))
    kept = first.copy()
    policy.outputs(floats(3, 4) + 5)
    np.testing.assert_array_equal(first, kept)


def test_one_observation_or_a_batch_of_any_number_type_is_understood():
    policy = make_policy(action=Discrete(3, start=10))
    x = floats(6, 4)
    batch = policy.act(x)
    assert batch.shape == (6,)
    assert set(batch.tolist()) <= {10, 11, 12}
    one = policy.act(x[2].astype(np.float64).tolist())
    assert type(one) is int
    assert one == batch[2]
    assert policy.act(jnp.asarray(x[2])) == one
    assert make_policy().act([1, 0, 0, 1]) == make_policy().act([1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("space", "observation"),
    [(Discrete(4, start=1), 3), (MultiDiscrete((2, 3)), [1, 2]), (Box((3, 3, 1), (0.0,), (255.0,), "uint8"), None)],
)
def test_choices_and_images_are_observed(space, observation):
    policy = make_policy(observation=space)
    one = np.full(space.shape, 7.0) if observation is None else observation
    assert policy.act(one) == policy.act(np.asarray([one, one]))[0]


def test_gaussian_actions_are_the_clipped_mean_or_spread_around_it():
    space = Box((2, 1), (-0.5, -9.0), (0.5, 9.0))
    policy = make_policy(action=space, kind="gaussian")
    x = floats(4)
    mean = policy.outputs(x[None])[0]
    np.testing.assert_allclose(policy.act(x).ravel(), np.clip(mean, [-0.5, -9], [0.5, 9]), atol=1e-6)
    rng = np.random.default_rng(0)
    drawn = np.array([policy.act(x, deterministic=False, rng=rng) for _ in range(2000)])
    assert drawn.shape == (2000, 2, 1)
    assert drawn[:, 0].max() <= 0.5
    assert float(drawn[:, 1].std()) == pytest.approx(float(np.exp(policy.tensors["head/log_std"][1])), rel=0.1)


def test_stochastic_actions_follow_the_logits_and_repeat_with_the_generator():
    policy = make_policy()
    x = floats(4)
    logits = policy.outputs(x[None])[0]
    drawn = policy.act(np.tile(x, (20_000, 1)), deterministic=False, rng=np.random.default_rng(0))
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, expected, atol=0.015)
    again = policy.act(np.tile(x, (20_000, 1)), deterministic=False, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, again)


def test_a_random_policy_samples_even_if_deterministic_and_repeats_with_the_generator():
    policy = make_policy(layers=None, kind="random", action=Discrete(50))
    drawn = [policy.act(floats(200, 4), deterministic, np.random.default_rng(3)) for deterministic in (True, False)]
    assert len(set(drawn[0].tolist())) > 25
    np.testing.assert_array_equal(*drawn)


def test_a_recurrent_policy_remembers_until_it_is_reset():
    policy = make_policy(layers=MEMORY, action=Box((2,)), kind="gaussian")
    assert policy.is_recurrent
    episode = floats(4, 4)
    first = [policy.act(x) for x in episode]
    policy.reset()
    again = [policy.act(x) for x in episode]
    np.testing.assert_array_equal(first, again)
    policy.reset()
    alone = policy.act(episode[-1])
    assert not np.allclose(alone, first[-1])
    assert not make_policy().is_recurrent
    assert make_policy().initial_state((3,)) == {}


def test_advance_of_a_recurrent_policy_equals_act():
    policy = make_policy(layers=MEMORY, action=Box((2,)), kind="gaussian")
    episodes, state = floats(5, 3, 4), policy.initial_state((3,))
    assert {name: each.shape for name, each in state.items()} == {
        "1_lstm/hidden": (3, 5),
        "1_lstm/cell": (3, 5),
        "2_gru/hidden": (3, 3),
    }
    for t, x in enumerate(episodes):
        untouched = {name: each.copy() for name, each in state.items()}
        outputs, after = policy.outputs_after(x, state)
        actions, later = policy.advance(x, state)
        np.testing.assert_array_equal(actions, policy.act(x))
        np.testing.assert_array_equal(actions, outputs)
        for name in state:
            np.testing.assert_array_equal(state[name], untouched[name])
            np.testing.assert_array_equal(after[name], later[name])
        ended = np.array([t == 1, t == 2, False])
        state = {name: np.where(ended[:, None], 0.0, each) for name, each in later.items()}
        policy.reset(ended)


def test_a_recurrent_policy_refuses_a_state_of_another_shape():
    policy = make_policy(layers=MEMORY)
    policy.act(floats(2, 4))
    with pytest.raises(UserError, match=r"remembers 2 episodes but got 1 observations.*reset\(\)"):
        policy.act(floats(4))
    with pytest.raises(UserError, match=r'state "1_lstm/hidden" of shape \(2, 5\)'):
        policy.advance(floats(2, 4), policy.initial_state((3,)))
    with pytest.raises(UserError, match='state "1_lstm/hidden"'):
        policy.advance(floats(2, 4), {})
    with pytest.raises(UserError, match="outputs_after"):
        policy.outputs(floats(2, 4))


def test_unknown_parts_of_a_state_are_passed_through():
    outputs, state = make_policy().outputs_after(floats(2, 4), {"noise": 3})
    np.testing.assert_array_equal(outputs, make_policy().outputs(floats(2, 4)))
    assert state == {"noise": 3}


def test_random_and_constant_policies_need_no_network():
    box = Box((2,), (-1.0,), (1.0,))
    random = make_policy(layers=None, kind="random", action=box)
    first = random.act(floats(4))
    assert np.all(np.abs(first) <= 1)
    assert random.outputs(floats(3, 4)).shape == (3, 0)
    constant = Policy(describe(layers=None, kind="constant", action=Discrete(9, start=3)), {"constant/action": 5})
    assert constant.act(floats(4)) == 5
    assert constant.act(floats(2, 4)).tolist() == [5, 5]
    still = Policy(describe(layers=None, kind="constant", action=box), {"constant/action": [0.5, -0.5]})
    np.testing.assert_array_equal(still.act(floats(4)), np.float32([0.5, -0.5]))


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(5), ("(4,)", "(batch, 4)", "(5,)")),
        (np.zeros((2, 3, 4)), ("(4,)", "(2, 3, 4)")),
        ([[1, 2], [3]], ("(4,)",)),
        ("left", ("(4,)",)),
        (None, ("(4,)",)),
    ],
)
def test_a_wrong_observation_is_refused_with_the_shape_it_should_have(observation, words):
    with pytest.raises(UserError) as caught:
        make_policy().act(observation)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("value", [0.5, 256, -1, float("nan")])
def test_a_picture_that_does_not_fit_into_bytes_is_refused(value):
    policy = make_policy(observation=Box((3, 3, 1), (0.0,), (255.0,), "uint8"))
    with pytest.raises(UserError, match="not all whole numbers that uint8 can hold"):
        policy.act(np.full((3, 3, 1), value))


@pytest.mark.parametrize("observation", [4, -1, [0, 7]])
def test_a_choice_that_does_not_exist_is_refused(observation):
    with pytest.raises(UserError, match=r"0 \.\. 3"):
        make_policy(observation=Discrete(4)).act(observation)


def test_replace_takes_copies_and_refuses_other_shapes():
    description = describe()
    new = {name: jnp.asarray(tensor) for name, tensor in tensors_for(description, seed=5).items()}
    policy = make_policy()
    policy.replace(new)
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), Policy(description, new).outputs(floats(2, 4)))
    mutable = tensors_for(description)
    policy.replace(mutable)
    before = policy.outputs(floats(2, 4))
    mutable["head/bias"] += 1
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), before)
    with pytest.raises(UserError, match=r'"head/bias".*\(3,\).*\(4,\)'):
        policy.replace({**new, "head/bias": np.zeros(4)})
    with pytest.raises(UserError, match='lacks the tensor "head/bias"'):
        policy.replace({name: tensor for name, tensor in new.items() if name != "head/bias"})
    with pytest.raises(UserError, match='"head/extra"'):
        policy.replace({**new, "head/extra": np.zeros(4)})
    np.testing.assert_array_equal(policy.outputs(floats(2, 4)), before)


def test_an_acting_thread_sees_one_version_of_the_tensors_at_a_time():
    policy = make_policy()
    x = floats(64, 4)
    generations = [tensors_for(policy.description, seed) for seed in range(2)]
    valid = {Policy(policy.description, tensors).outputs(x).tobytes() for tensors in generations}
    mixed = []
    stop = threading.Event()

    def act():
        while not stop.is_set():
            if (given := policy.outputs(x).tobytes()) not in valid:
                mixed.append(given)

    thread = threading.Thread(target=act)
    thread.start()
    for index in range(400):
        policy.replace(generations[index % 2])
    stop.set()
    thread.join()
    assert not mixed


def test_a_learned_head_needs_a_network():
    with pytest.raises(SpecError, match="needs a network"):
        make_policy(layers=None)


def test_tensors_have_the_names_of_the_network_parameters():
    network = Network(NetworkSpec(DENSE), Box((4,)))
    names = flatten({"torso": network.init(np.random.default_rng(0))}).keys()
    assert names == {name for name in tensor_shapes(describe()) if name.startswith("torso/")}
