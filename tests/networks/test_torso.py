"""The JAX networks against flax.linen's own layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.errors import SpecError
from steppe.networks import Network, apply_head, default_layers, head
from steppe.networks.initializers import orthogonal
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

KEY = jax.random.key(3)
FLAX_ACTIVATIONS = {
    "relu": nn.relu,
    "elu": nn.elu,
    "selu": nn.selu,
    "sigmoid": nn.sigmoid,
    "swish": nn.swish,
    "leaky_relu": nn.leaky_relu,
    "crelu": lambda x: jnp.concatenate([nn.relu(x), nn.relu(-x)], -1),
    "softplus": nn.softplus,
    "softsign": nn.soft_sign,
    "softmax": nn.softmax,
    "tanh": nn.tanh,
    "gelu": nn.gelu,
    "none": lambda x: x,
}


def rng():
    return np.random.default_rng(3)


def network(observation, *layers, **settings):
    return Network(NetworkSpec(list(layers)), observation, **settings)


def shaken(params, seed=0):
    """Parameters other than zero and one, so that a missing bias or scale is detected."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), params)


def observations(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("activation", FLAX_ACTIVATIONS)
def test_dense_layers_equal_flax(activation):
    torso = network(Box((5,)), {"type": "dense", "size": 7, "activation": activation}, {"type": "linear", "size": 3})
    params = shaken(torso.init(rng()))
    x = observations((4, 5))
    hidden = FLAX_ACTIVATIONS[activation](nn.Dense(7).apply({"params": params["0_dense"]}, x))
    expected = nn.Dense(3).apply({"params": params["1_linear"]}, hidden)
    np.testing.assert_allclose(torso.apply(params, x), expected, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (4, 3), (2, 2)])
def test_convolutions_and_pooling_equal_flax(padding, window, stride):
    spatial = {"window": window, "stride": stride, "padding": padding}
    torso = network(Box((17, 15, 2)), {"type": "conv2d", "size": 4, "activation": "none", **spatial})
    params = shaken(torso.init(rng()))
    x = observations((3, 17, 15, 2))
    conv = nn.Conv(4, (window, window), (stride, stride), padding).apply({"params": params["0_conv2d"]}, x)
    np.testing.assert_allclose(torso.apply(params, x), conv.reshape(3, -1), atol=1e-4)

    sequence = network(Box((17, 2)), {"type": "conv1d", "size": 4, "activation": "none", **spatial})
    params = shaken(sequence.init(rng()))
    conv = nn.Conv(4, (window,), (stride,), padding).apply({"params": params["0_conv1d"]}, x[:, :, 0])
    np.testing.assert_allclose(sequence.apply(params, x[:, :, 0]), conv.reshape(3, -1), atol=1e-4)

    for kind in ("max", "average"):
        torso = network(Box((17, 15, 2)), {"type": "pool2d", "pooling_type": kind, **spatial})
        sizes = ((window, window), (stride, stride), padding)
        pooled = nn.max_pool(x, *sizes) if kind == "max" else nn.avg_pool(x, *sizes, count_include_pad=False)
        np.testing.assert_allclose(torso.apply({}, x), pooled.reshape(3, -1), atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_and_strides_may_differ_by_axis(padding):
    spatial = {"window": [2, 5], "stride": [3, 1], "padding": padding}
    x = observations((3, 17, 15, 2))
    torso = network(Box((17, 15, 2)), {"type": "conv2d", "size": 4, "activation": "none", **spatial})
    params = shaken(torso.init(rng()))
    conv = nn.Conv(4, (2, 5), (3, 1), padding).apply({"params": params["0_conv2d"]}, x)
    np.testing.assert_allclose(torso.apply(params, x), conv.reshape(3, -1), atol=1e-4)
    pooled = nn.avg_pool(x, (2, 5), (3, 1), padding, count_include_pad=False)
    torso = network(Box((17, 15, 2)), {"type": "pool2d", "pooling_type": "average", **spatial})
    np.testing.assert_allclose(torso.apply({}, x), pooled.reshape(3, -1), atol=1e-5)


def test_a_dense_layer_with_skip_is_a_residual_block():
    torso = network(Box((5,)), {"type": "dense", "skip": True, "activation": "tanh"})
    assert torso.features == 5
    layer = shaken(torso.init(rng()))["0_dense"]
    x = observations((4, 5))
    hidden = np.tanh(x @ layer["kernel"] + layer["bias"])
    expected = np.tanh(x + hidden @ layer["skip_kernel"] + layer["skip_bias"])
    np.testing.assert_allclose(torso.apply({"0_dense": layer}, x), expected, atol=1e-5)


def test_a_nonlinearity_scales_and_cuts_its_inputs():
    x = 3 * observations((4, 5))

    def bent(**options):
        torso = network(Box((5,)), {"type": "nonlinearity", **options})
        return torso.apply(torso.init(rng()), x)

    np.testing.assert_allclose(
        bent(name="tanh", beta=0.5, max=0.4, min=-1), np.tanh(np.clip(x / 2, -1, 0.4)), atol=1e-6
    )
    np.testing.assert_allclose(bent(name="leaky_relu", alpha=0.3), np.where(x > 0, x, 0.3 * x), atol=1e-6)
    np.testing.assert_allclose(bent(name="swish", beta=2.0), x / (1 + np.exp(-2 * x)), atol=1e-5)
    learned = network(Box((5,)), {"type": "nonlinearity", "name": "softsign", "beta": "learn"})
    np.testing.assert_array_equal(learned.init(rng())["0_nonlinearity"]["beta"], 1.0)
    value = learned.apply({"0_nonlinearity": {"beta": np.float32(3.0)}}, x)
    np.testing.assert_allclose(value, 3 * x / (1 + np.abs(3 * x)), atol=1e-6)


def test_the_penalty_is_the_sum_of_the_layers_regularization():
    layers = (
        {"type": "dense", "size": 3, "l2_regularization": 0.1},
        {"type": "dense", "size": 4},
        {"type": "linear", "size": 2, "bias": False, "l1_regularization": 0.2, "l2_regularization": 0.3},
    )
    torso = network(Box((5,)), *layers, supports=["regularization"])
    params = shaken(torso.init(rng()))
    first, last = params["0_dense"], params["2_linear"]["kernel"]
    expected = 0.05 * (np.sum(first["kernel"] ** 2) + np.sum(first["bias"] ** 2))
    expected += 0.2 * np.sum(np.abs(last)) + 0.15 * np.sum(last**2)
    assert float(torso.penalty(params)) == pytest.approx(float(expected), rel=1e-5)
    assert network(Box((5,)), {"type": "dense", "size": 3}).penalty({}) == 0.0


def test_layers_that_the_agent_does_not_support_are_refused():
    with pytest.raises(SpecError, match=r"layer 0 \(dense\) of the network has l1_reg.*; leave it out"):
        network(Box((5,)), {"type": "dense", "size": 3, "l1_regularization": 0.1})
    with pytest.raises(SpecError, match=r"layer 1 \(internal_lstm\) of the network keeps a state.*such as ppo"):
        network(Box((5,)), {"type": "dense", "size": 3}, {"type": "internal_lstm", "size": 3})


def test_layer_norm_equals_flax():
    torso = network(Box((6,)), {"type": "layer_norm"})
    params = shaken(torso.init(rng()))
    x = 3 * observations((4, 6)) + 2
    expected = nn.LayerNorm().apply({"params": params["0_layer_norm"]}, x)
    np.testing.assert_allclose(torso.apply(params, x), expected, atol=1e-5)


def test_any_leading_axes_give_the_same_features():
    layers = ({"type": "conv2d", "size": 4}, {"type": "flatten"}, {"type": "dense", "size": 8})
    torso = network(Box((6, 5, 3)), *layers)
    params = torso.init(rng())
    x = observations((2, 3, 6, 5, 3))
    features = torso.apply(params, x)
    assert features.shape == (2, 3, 8)
    np.testing.assert_allclose(features[1, 2], torso.apply(params, x[1, 2]), atol=1e-6)
    np.testing.assert_allclose(features[1], torso.apply(params, x[1]), atol=1e-6)


def test_a_dense_network_is_products_sums_and_activations_only():
    torso = Network(default_layers(Box((4,))), Box((4,)))
    jaxpr = jax.make_jaxpr(torso.apply)(torso.init(rng()), jnp.zeros((8, 4)))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    # The first is a product with gradients of its own.
    assert names == ["custom_vjp_call", "broadcast_in_dim", "add", "tanh"] * 2


def test_parameters_are_plain_dictionaries_named_by_index_and_type():
    layers = ({"type": "conv2d", "size": 4}, {"type": "flatten"}, {"type": "dense", "size": 8, "bias": False})
    params = network(Box((6, 5, 3)), *layers).init(rng())
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {"0_conv2d": {"kernel": (3, 3, 3, 4), "bias": (4,)}, "2_dense": {"kernel": (120, 8)}}
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


def test_hidden_kernels_are_orthogonal_with_gain_root_two():
    torso = network(Box((20,)), *({"type": "dense", "size": size} for size in (4, 9, 64, 64, 200)))
    params = torso.init(rng())
    for layer in params.values():
        kernel = np.asarray(layer["kernel"])
        smaller = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(smaller, 2 * np.eye(len(smaller)), atol=1e-5)
        assert not np.any(layer["bias"])


def test_orthogonal_draws_are_uniform_for_tall_and_wide_kernels():
    rng = np.random.default_rng(0)
    for shape in ((3, 3), (3, 2), (4, 2), (2, 5)):
        drawn = np.stack([orthogonal(rng, shape, 1.0) for _ in range(3000)])
        # Over all orthogonal frames each element has mean 0 and variance 1 / length.
        np.testing.assert_allclose(drawn.mean(0), 0, atol=0.05)
        np.testing.assert_allclose(np.square(drawn).mean(0), 1 / max(shape), atol=0.03)


def test_lecun_kernels_keep_the_variance():
    kernel = network(Box((400,)), {"type": "dense", "size": 300}, kernel_init="lecun").init(rng())["0_dense"]["kernel"]
    assert float(np.var(kernel)) == pytest.approx(1 / 400, rel=0.05)


def test_a_seed_gives_the_same_parameters_and_none_gives_zeros_of_the_same_shapes():
    torso = Network(default_layers(Box((4,))), Box((4,)))
    once, again, other = torso.init(rng()), torso.init(rng()), torso.init(np.random.default_rng(7))
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert np.any(once["0_dense"]["kernel"] != other["0_dense"]["kernel"])
    empty = torso.init(None)
    assert jax.tree.map(np.shape, empty) == jax.tree.map(np.shape, once)
    assert not any(leaf.any() for leaf in jax.tree.leaves(empty))


def test_a_head_is_an_orthogonal_kernel_of_the_given_scale():
    params = head(rng(), 64, 3, 0.01)
    np.testing.assert_allclose(params["kernel"].T @ params["kernel"], 1e-4 * np.eye(3), atol=1e-9)
    x = observations((2, 5, 64))
    np.testing.assert_allclose(apply_head(params, x), x @ np.asarray(params["kernel"]), atol=1e-6)


def test_dropout_drops_its_share_only_with_a_key():
    torso = network(Box((10_000,)), {"type": "dropout", "rate": 0.25})
    assert torso.has_dropout
    x = jnp.ones((1, 10_000))
    np.testing.assert_array_equal(torso.apply({}, x), x)
    dropped = np.asarray(torso.apply({}, x, dropout_key=KEY))
    assert np.mean(dropped == 0) == pytest.approx(0.25, abs=0.02)
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}


def test_networks_are_equal_and_hash_alike_when_their_layers_and_spaces_are():
    one, two = (Network(default_layers(Box((4,))), Box((4,))) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Network(default_layers(Box((4,))), Box((4,)), kernel_init="lecun")
    assert one != Network(default_layers(Box((4,))), Box((5,)))


def test_bytes_are_divided_and_channels_first_images_are_turned():
    space = Box((3, 12, 10), (0.0,), (255.0,), "uint8")
    torso = network(space, {"type": "conv2d", "size": 2, "activation": "none"})
    params = torso.init(rng())
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 12, 10), np.uint8)
    image = np.transpose(x, (0, 2, 3, 1)).astype(np.float32) / 255
    expected = nn.Conv(2, (3, 3)).apply({"params": params["0_conv2d"]}, image)
    np.testing.assert_allclose(torso.apply(params, x), expected.reshape(2, -1), atol=1e-5)


def test_choices_become_one_hot_vectors():
    identity = {"type": "nonlinearity", "name": "none"}
    one = network(Discrete(3, start=5), identity).apply({}, np.array([5, 7]))
    np.testing.assert_array_equal(one, [[1, 0, 0], [0, 0, 1]])
    several = network(MultiDiscrete((2, 3)), identity).apply({}, np.array([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(several, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])


def test_embeddings_look_up_each_choice():
    torso = network(MultiDiscrete((2, 3)), {"type": "embedding", "indices": 3, "size": 4})
    params = torso.init(rng())
    table = np.asarray(params["0_embedding"]["embedding"])
    features = torso.apply(params, np.array([[1, 2], [0, 1]]))
    np.testing.assert_array_equal(features, [[*table[1], *table[2]], [*table[0], *table[1]]])


@pytest.mark.parametrize("observed", [np.uint8, np.float32])
def test_a_later_convolution_gets_scaled_bytes(observed):
    space = Box((9, 9, 2), (0.0,), (255.0,), "uint8")
    later = network(space, {"type": "layer_norm"}, {"type": "conv2d", "size": 2})
    params = later.init(rng())
    x = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 2)).astype(observed)
    scaled = x.astype(np.float32) / (255 if observed == np.uint8 else 1)
    hidden = nn.LayerNorm().apply({"params": params["0_layer_norm"]}, scaled)
    expected = nn.relu(nn.Conv(2, (3, 3)).apply({"params": params["1_conv2d"]}, hidden))
    np.testing.assert_allclose(later.apply(params, x), expected.reshape(2, -1), atol=1e-4)


@pytest.mark.parametrize("pixels", [10, 35, 36, 84])
def test_images_get_convolutions_that_fit(pixels):
    space = Box((pixels, pixels, 3), (0.0,), (255.0,), "uint8")
    torso = Network(default_layers(space), space)
    assert torso.features == (512 if pixels >= 36 else 256)
    assert torso.layers.root[0].type == "conv2d"


def test_vectors_and_choices_get_two_dense_layers():
    for space in (Box((4,)), Box((2, 3)), Discrete(4), MultiDiscrete((2, 2))):
        assert [layer.size for layer in default_layers(space).root] == [64, 64]
        assert Network(default_layers(space), space).features == 64


@pytest.mark.parametrize(
    ("space", "layers", "words"),
    [
        (Box((4,)), [{"type": "conv2d", "size": 8}], ("layer 0 (conv2d)", "(4,)")),
        (Discrete(4), [{"type": "pool2d"}], ("layer 0 (pool2d)", "(4,)")),
        (
            Box((6, 6, 1)),
            [
                {"type": "conv2d", "size": 8, "stride": 2},
                {"type": "conv2d", "size": 8, "window": 4, "padding": "VALID"},
            ],
            ("layer 1 (conv2d)", "window of 4", "(3, 3, 8)"),
        ),
        (Box((4,)), [{"type": "dense", "size": 8}, {"type": "conv1d", "size": 8}], ("layer 1 (conv1d)", "(8,)")),
        (Box((4,)), [{"type": "embedding", "indices": 4, "size": 2}], ("layer 0 (embedding)", "float32")),
        (Discrete(9), [{"type": "embedding", "indices": 4, "size": 2}], ("4 indices", "9")),
        (
            Discrete(9),
            [{"type": "dense", "size": 9}, {"type": "embedding", "indices": 9, "size": 2}],
            ("layer 1 (embedding)", "first"),
        ),
        (
            Box((4,)),
            [{"type": "dense", "size": 4}, {"type": "dueling"}, {"type": "dense", "size": 4}],
            ("layer 1 (dueling)", "dqn"),
        ),
    ],
)
def test_layers_that_do_not_fit_are_named_with_their_input_shape(space, layers, words):
    with pytest.raises(SpecError) as caught:
        network(space, *layers)
    assert all(word in str(caught.value) for word in words), str(caught.value)
