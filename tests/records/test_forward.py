"""The NumPy forward pass against the JAX networks."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from steppe.networks import Network, default_layers
from steppe.records.forward import Forward
from steppe.records.policy import flatten
from steppe.specs.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

ACTIVATIONS = [
    "relu",
    "elu",
    "selu",
    "sigmoid",
    "swish",
    "leaky_relu",
    "softplus",
    "softsign",
    "softmax",
    "tanh",
    "gelu",
    "none",
]


def pair(space, layers):
    """A JAX network whose biases and scales are neither zero nor one, and the NumPy forward of the same."""
    network = Network(layers if isinstance(layers, NetworkSpec) else NetworkSpec(layers), space)
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
