"""The NumPy forward pass against the JAX networks."""

from __future__ import annotations

import threading
from typing import get_args

import jax
import numpy as np
import pytest

from policies import flatten
from steppe.networks import Network, default_layers
from steppe.policies.forward import Forward
from steppe.specs.learning.layer_options import Activation
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part

ACTIVATIONS = get_args(Activation)


def pair(space, layers):
    """A JAX network whose biases and scales are neither zero nor one, and the NumPy forward of the same."""
    layers = layers if isinstance(layers, NetworkSpec) else NetworkSpec(layers)
    network = Network(layers, space, supports=["recurrent"])
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf) + (leaf.ndim == 1) * rng.standard_normal(leaf.shape).astype(np.float32) / 5,
        network.init(np.random.default_rng(0)),
    )
    forward = Forward(network.plan)
    prepared = forward.prepare(flatten(params))
    apply = jax.jit(network.apply)
    return lambda x: np.asarray(apply(params, x)), lambda x: forward(prepared, x)


def assert_same(space, layers, x):
    expected, features = pair(space, layers)
    np.testing.assert_allclose(features(x), expected(x), atol=1e-5, rtol=1e-5)


def floats(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_jax_in_buffers_and_by_themselves(activation):
    x = 4 * floats(6, 5)
    untouched = x.copy()
    dense = [{"type": "dense", "size": 7, "activation": activation}, {"type": "linear", "size": 3, "bias": False}]
    assert_same(Box((5,)), dense, x)
    assert_same(Box((5,)), [{"type": "nonlinearity", "name": activation}], x)
    np.testing.assert_array_equal(x, untouched)


@pytest.mark.parametrize("activation", ["sigmoid", "swish", "softplus", "softmax", "elu", "gelu", "selu"])
def test_activations_of_huge_numbers_neither_overflow_nor_warn(activation):
    x = np.array([[-1e4, -200.0, 0.0, 200.0, 1e4]], np.float32)
    assert_same(Box((5,)), [{"type": "nonlinearity", "name": activation}], x)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("window", "stride"), [(1, 1), (3, 1), (3, 2), (4, 3), (2, 2), (5, 4), (1, 2)])
def test_windows_equal_xla_for_odd_sizes(padding, window, stride):
    spatial = {"window": window, "stride": stride, "padding": padding}
    image, sequence = floats(3, 13, 10, 2), floats(3, 11, 2)
    assert_same(Box((13, 10, 2)), [{"type": "conv2d", "size": 4, "activation": "tanh", **spatial}], image)
    assert_same(Box((11, 2)), [{"type": "conv1d", "size": 4, "activation": "tanh", **spatial}], sequence)
    for kind in ("max", "average"):
        assert_same(Box((13, 10, 2)), [{"type": "pool2d", "pooling_type": kind, **spatial}], image)


def test_every_layer_together_equals_jax():
    layers = [
        {"type": "layer_norm"},
        {"type": "conv2d", "size": 4, "bias": False},
        {"type": "pool2d"},
        {"type": "nonlinearity", "name": "tanh"},
        {"type": "flatten"},
        {"type": "dropout", "rate": 0.5},
        {"type": "dense", "size": 9, "activation": "gelu"},
        {"type": "layer_norm"},
        {"type": "linear", "size": 3},
    ]
    assert_same(Box((9, 7, 3)), layers, floats(4, 9, 7, 3))


def test_a_dense_layer_after_a_convolution_reads_all_of_it():
    assert_same(Box((6, 2)), [{"type": "conv1d", "size": 4}, {"type": "dense", "size": 3}], floats(2, 6, 2))


@pytest.mark.parametrize("shape", [(4, 40, 44), (44, 40, 3), (3, 12, 10), (10, 10, 4)])
def test_images_of_bytes_equal_jax(shape):
    space = Box(shape, (0.0,), (255.0,), "uint8")
    images = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    assert_same(space, default_layers(space), images)


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (Discrete(4, start=-1), np.array([-1, 0, 2])),
        (MultiDiscrete((2, 4)), np.array([[0, 3], [1, 1]])),
        (Box((2, 3)), floats(5, 2, 3)),
        (Box((2,), dtype="float64"), np.ones((3, 2))),
    ],
)
def test_other_observations_equal_jax(space, x):
    assert_same(space, default_layers(space), x)
    if not isinstance(space, Box):
        assert_same(space, [{"type": "embedding", "indices": 4, "size": 3}, {"type": "dense", "size": 5}], x)


def test_sequences_and_pictures_without_channels_get_one():
    assert_same(Box((8,)), [{"type": "conv1d", "size": 3}], floats(2, 8))
    assert_same(Box((8, 9)), [{"type": "conv2d", "size": 3}], floats(2, 8, 9))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_may_differ_by_axis(padding):
    spatial = {"window": [2, 5], "stride": [3, 1], "padding": padding}
    assert_same(Box((13, 10, 2)), [{"type": "conv2d", "size": 4, **spatial}], floats(3, 13, 10, 2))
    assert_same(Box((13, 10, 2)), [{"type": "pool2d", "pooling_type": "average", **spatial}], floats(3, 13, 10, 2))


@pytest.mark.parametrize("bias", [True, False])
def test_residual_blocks_equal_jax(bias):
    assert_same(Box((2, 3)), [{"type": "dense", "skip": True, "activation": "tanh", "bias": bias}] * 2, floats(4, 2, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"name": "tanh", "beta": 0.5, "max": 0.4, "min": -1.0},
        {"name": "leaky_relu", "alpha": 0.3, "max": 1.0},
        {"name": "leaky_relu", "alpha": 1.5},
        {"name": "swish", "beta": 2.0},
        {"name": "crelu", "beta": "learn"},
    ],
)
def test_nonlinearities_with_options_equal_jax(options):
    x = 3 * floats(4, 5)
    untouched = x.copy()
    assert_same(Box((5,)), [{"type": "nonlinearity", **options}, {"type": "linear", "size": 2}], x)
    np.testing.assert_array_equal(x, untouched)


@pytest.mark.parametrize("kind", ["lstm", "internal_lstm", "gru"])
def test_recurrent_layers_equal_jax_timestep_by_timestep(kind):
    layers = [
        {"type": "conv1d", "size": 3},
        {"type": kind, "size": 5, "dropout": 0.5},
        {"type": "dense", "size": 4},
        {"type": kind, "size": 2},
    ]
    network = Network(NetworkSpec(layers), Box((4, 2)), supports=["recurrent"])
    params = jax.tree.map(lambda leaf: leaf + 0.1, network.init(np.random.default_rng(0)))
    forward = Forward(network.plan)
    prepared = forward.prepare(flatten(params))
    state, own = network.initial_state((3,)), forward.initial_state((3,))
    assert own.keys() == state.keys()
    for t in range(5):
        x = floats(3, 4, 2, seed=t)
        expected, state = network.advance(params, x, state)
        features, own = forward.advance(prepared, x, own)
        np.testing.assert_allclose(features, expected, atol=1e-5)
    for name, each in state.items():
        np.testing.assert_allclose(own[name], each, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["concat", "sum", "product", "max", "mean"])
def test_branches_equal_jax(aggregation):
    image = Box((6, 5, 2), (0.0,), (255.0,), "uint8")
    parts = (Part("image", 0, image), Part("speed", 60, Box((3,))), Part("gear", 63, Discrete(4)))
    parts += (Part("keys", 67, MultiDiscrete((2, 3))),)
    layers = [
        [{"type": "input", "names": ["image"]}, {"type": "conv2d", "size": 3}, {"type": "dense", "size": 4}]
        + [{"type": "output", "name": "seen"}],
        [
            {"type": "input", "names": ["speed", "gear"]},
            {"type": "dense", "size": 4},
            {"type": "output", "name": "moved"},
        ],
        [{"type": "input", "names": ["keys"]}, {"type": "embedding", "indices": 3, "size": 2}]
        + [{"type": "dense", "size": 4}, {"type": "output", "name": "pressed"}],
        [{"type": "input", "names": ["seen", "moved", "pressed"], "aggregation_type": aggregation}]
        + [{"type": "dense", "size": 5, "activation": "tanh"}],
    ]
    rng = np.random.default_rng(0)
    hot = [np.eye(n)[rng.integers(0, n, 4)] for n in (4, 2, 3)]
    x = np.concatenate([rng.integers(0, 256, (4, 60)), rng.standard_normal((4, 3)), *hot], 1).astype(np.float32)
    space = Box((72,), parts=parts)
    assert_same(space, layers, x)
    assert_same(space, default_layers(space), x)
    assert_same(space, [{"type": "dense", "size": 4}], x)


def test_changing_batch_sizes_do_not_disturb_each_other():
    expected, features = pair(Box((4,)), default_layers(Box((4,))))
    x = floats(24, 4)
    rows = expected(x)
    for batch in [*range(1, 25), 3, 1, 24]:
        np.testing.assert_allclose(features(x[-batch:]), rows[-batch:], atol=1e-5)


def test_threads_do_not_share_buffers():
    _, features = pair(Box((4,)), [{"type": "dense", "size": 256, "activation": "tanh"}] * 3)
    inputs = [floats(64, 4, seed=seed) for seed in range(4)]
    expected = [features(x).copy() for x in inputs]
    wrong = []

    def check(index):
        wrong.extend(index for _ in range(100) if not np.array_equal(features(inputs[index]), expected[index]))

    threads = [threading.Thread(target=check, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
