"""Recurrent networks against flax's cells and against plain loops."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.networks import Network
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box

SIZE, INPUTS = 5, 3
LSTM_GATES, GRU_GATES = "ifgo", "rzn"


def network(*layers, observation=None, **settings):
    return Network(NetworkSpec(list(layers)), observation or Box((INPUTS,)), supports=["recurrent"], **settings)


def shaken(params, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), params)


def fresh(torso):
    return shaken(torso.init(np.random.default_rng(3)))


def floats(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_state(torso, rows):
    return {name: floats(rows, SIZE, seed=len(name)) for name in torso.initial_state((rows,))}


def gates(array, letters):
    return dict(zip(letters, np.split(np.asarray(array), len(letters), axis=-1), strict=True))


def test_an_lstm_equals_flax():
    torso = network({"type": "lstm", "size": SIZE})
    params = fresh(torso)
    own = params["0_lstm"]
    inputs, recurrent, bias = (gates(own[name], LSTM_GATES) for name in ("kernel", "recurrent_kernel", "bias"))
    theirs = {f"i{gate}": {"kernel": inputs[gate]} for gate in LSTM_GATES}
    theirs |= {f"h{gate}": {"kernel": recurrent[gate], "bias": bias[gate]} for gate in LSTM_GATES}
    x, state = floats(4, INPUTS), random_state(torso, 4)
    carry = (state["0_lstm/cell"], state["0_lstm/hidden"])
    (cell, hidden), output = nn.OptimizedLSTMCell(SIZE).apply({"params": theirs}, carry, x)
    features, after = torso.advance(params, x, state)
    np.testing.assert_allclose(features, output, atol=1e-6)
    np.testing.assert_allclose(after["0_lstm/hidden"], hidden, atol=1e-6)
    np.testing.assert_allclose(after["0_lstm/cell"], cell, atol=1e-6)


def test_a_gru_equals_flax():
    torso = network({"type": "gru", "size": SIZE})
    params = fresh(torso)
    own = params["0_gru"]
    inputs, recurrent, bias = (gates(own[name], GRU_GATES) for name in ("kernel", "recurrent_kernel", "bias"))
    theirs = {f"i{gate}": {"kernel": inputs[gate], "bias": bias[gate]} for gate in GRU_GATES}
    theirs |= {f"h{gate}": {"kernel": recurrent[gate]} for gate in GRU_GATES}
    theirs["hn"]["bias"] = own["recurrent_bias"]
    x, state = floats(4, INPUTS), random_state(torso, 4)
    hidden, output = nn.GRUCell(SIZE).apply({"params": theirs}, state["0_gru/hidden"], x)
    features, after = torso.advance(params, x, state)
    np.testing.assert_allclose(features, output, atol=1e-6)
    np.testing.assert_allclose(after["0_gru/hidden"], hidden, atol=1e-6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(kind, own, x, state, resets):
    """One row, one timestep and one gate after the other, in 64 bits."""
    own = {name: np.asarray(each, np.float64) for name, each in own.items()}
    hidden, cell = np.array(state[0], np.float64), np.array(state[-1], np.float64)
    features = np.zeros((*x.shape[:2], SIZE))
    for t in range(len(x)):
        for n in range(x.shape[1]):
            if resets[t, n]:
                hidden[n], cell[n] = 0, 0
            letters = GRU_GATES if kind == "gru" else LSTM_GATES
            given = gates(x[t, n] @ own["kernel"] + own["bias"], letters)
            remembered = gates(hidden[n] @ own["recurrent_kernel"], letters)
            if kind == "gru":
                reset, update = (sigmoid(given[gate] + remembered[gate]) for gate in "rz")
                candidate = np.tanh(given["n"] + reset * (remembered["n"] + own["recurrent_bias"]))
                hidden[n] = (1 - update) * candidate + update * hidden[n]
            else:
                into, forget, out = (sigmoid(given[gate] + remembered[gate]) for gate in "ifo")
                cell[n] = forget * cell[n] + into * np.tanh(given["g"] + remembered["g"])
                hidden[n] = out * np.tanh(cell[n])
            features[t, n] = hidden[n]
    return features, hidden


@pytest.mark.parametrize("kind", ["lstm", "internal_lstm", "gru"])
def test_a_sequence_with_episodes_that_begin_in_it_equals_a_plain_loop(kind):
    torso = network({"type": kind, "size": SIZE})
    params, x, state = fresh(torso), floats(7, 4, INPUTS), random_state(torso, 4)
    resets = np.random.default_rng(2).random((7, 4)) < 0.3
    resets[0, 0], resets[-1, 1] = True, True
    features, last = jax.jit(torso.unroll)(params, x, state, resets)
    expected, hidden = by_hand(kind, params[f"0_{kind}"], x, list(state.values()), resets)
    np.testing.assert_allclose(features, expected, atol=1e-5)
    np.testing.assert_allclose(last[f"0_{kind}/hidden"], hidden, atol=1e-5)


DEEP = [
    {"type": "conv1d", "size": 4},
    {"type": "lstm", "size": SIZE},
    {"type": "dense", "size": 6, "activation": "tanh"},
    {"type": "gru", "size": SIZE},
    {"type": "linear", "size": 3},
]


def deep():
    return network(*DEEP, observation=Box((INPUTS, 2)))


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_sequence_cut_anywhere_gives_the_same_features(cut):
    torso = deep()
    params, x, state = fresh(torso), floats(6, 4, INPUTS, 2), random_state(torso, 4)
    resets = np.random.default_rng(2).random((6, 4)) < 0.3
    whole, last = torso.unroll(params, x, state, resets)
    first, between = torso.unroll(params, x[:cut], state, resets[:cut])
    second, end = torso.unroll(params, x[cut:], between, resets[cut:])
    np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-5)
    jax.tree.map(lambda own, expected: np.testing.assert_allclose(own, expected, atol=1e-5), end, last)


def test_a_sequence_equals_one_timestep_after_the_other():
    torso = deep()
    params, x, state = fresh(torso), floats(6, 4, INPUTS, 2), random_state(torso, 4)
    resets = np.random.default_rng(2).random((6, 4)) < 0.3
    whole, last = torso.unroll(params, x, state, resets)
    for t in range(6):
        begun = {name: np.where(resets[t][:, None], 0.0, each) for name, each in state.items()}
        features, state = torso.advance(params, x[t], begun)
        np.testing.assert_allclose(features, whole[t], atol=1e-5)
    jax.tree.map(lambda own, expected: np.testing.assert_allclose(own, expected, atol=1e-5), state, last)


def test_gradients_of_a_sequence_equal_those_of_a_loop():
    torso = network({"type": "lstm", "size": SIZE})
    params, x, state = fresh(torso), floats(4, 2, INPUTS), random_state(torso, 2)
    resets = np.array([[0, 1], [0, 0], [1, 0], [0, 0]], bool)

    def unrolled(params):
        return jnp.sum(jnp.sin(torso.unroll(params, x, state, resets)[0]))

    def looped(params):
        total, now = 0.0, state
        for t in range(4):
            now = {name: jnp.where(resets[t][:, None], 0.0, each) for name, each in now.items()}
            features, now = torso.advance(params, x[t], now)
            total += jnp.sum(jnp.sin(features))
        return total

    own, expected = jax.grad(unrolled)(params), jax.grad(looped)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), own, expected)


def test_only_the_recurrent_product_is_inside_the_loop():
    torso = deep()
    x, state = jnp.zeros((6, 4, INPUTS, 2)), torso.initial_state((4,))
    jaxpr = jax.make_jaxpr(torso.unroll)(torso.init(None), x, state, jnp.zeros((6, 4), bool))
    loops = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    assert len(loops) == 2
    for loop in loops:
        inside = [equation.primitive.name for equation in loop.params["jaxpr"].eqns]
        assert inside.count("dot_general") == 1


def test_states_are_zeros_by_name_and_feed_forward_networks_have_none():
    torso = deep()
    assert torso.is_recurrent
    state = torso.initial_state((2, 4))
    assert {name: each.shape for name, each in state.items()} == {
        "1_lstm/hidden": (2, 4, SIZE),
        "1_lstm/cell": (2, 4, SIZE),
        "3_gru/hidden": (2, 4, SIZE),
    }
    assert not any(np.any(each) for each in state.values())
    plain = Network(NetworkSpec([{"type": "dense", "size": 4}]), Box((INPUTS,)))
    params, x = plain.init(np.random.default_rng(0)), floats(6, 4, INPUTS)
    assert not plain.is_recurrent
    assert plain.initial_state((4,)) == {}
    features, after = plain.unroll(params, x, {}, np.zeros((6, 4), bool))
    np.testing.assert_array_equal(features, plain.apply(params, x))
    assert after == {}
    assert plain.advance(params, x[0], {"other": 1})[1] == {"other": 1}


def test_a_recurrent_network_is_not_run_without_its_state():
    torso = network({"type": "gru", "size": SIZE})
    with pytest.raises(ValueError, match="advance or unroll"):
        torso.apply(fresh(torso), floats(4, INPUTS))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_kernels_are_orthogonal_gate_by_gate_and_an_lstm_forgets_little(kind):
    params = network({"type": kind, "size": SIZE}).init(np.random.default_rng(0))[f"0_{kind}"]
    for kernel in gates(params["recurrent_kernel"], GRU_GATES if kind == "gru" else LSTM_GATES).values():
        np.testing.assert_allclose(kernel.T @ kernel, np.eye(SIZE), atol=1e-5)
    for kernel in gates(params["kernel"], GRU_GATES if kind == "gru" else LSTM_GATES).values():
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(INPUTS), atol=1e-5)
    expected = np.zeros_like(params["bias"])
    if kind == "lstm":
        expected[SIZE : 2 * SIZE] = 1
    np.testing.assert_array_equal(params["bias"], expected)
    assert set(network({"type": kind, "size": SIZE}).init(None)[f"0_{kind}"]) == set(params)


def test_dropout_of_a_recurrent_layer_is_of_its_outputs_and_only_with_a_key():
    torso = network({"type": "lstm", "size": SIZE, "dropout": 0.5})
    assert torso.has_dropout
    params, x, state = fresh(torso), floats(200, INPUTS), random_state(torso, 200)
    whole, after = torso.advance(params, x, state)
    dropped, same = torso.advance(params, x, state, jax.random.key(0))
    kept = np.asarray(dropped) != 0
    assert kept.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(np.asarray(dropped)[kept], 2 * np.asarray(whole)[kept], rtol=1e-5)
    np.testing.assert_array_equal(after["0_lstm/hidden"], same["0_lstm/hidden"])
