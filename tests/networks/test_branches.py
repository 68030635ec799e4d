"""Networks that read named parts of an observation."""

from __future__ import annotations

import flax.linen as nn
import numpy as np
import pytest

from steppe.errors import SpecError
from steppe.networks import Network, default_layers
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part

BYTES = ((0.0,), (255.0,), "uint8")
IMAGE, SPEED, GEAR, KEYS = Box((6, 5, 2), *BYTES), Box((3,)), Discrete(4), MultiDiscrete((2, 3))
COUNT = Box((2,), (0.0,), (4.0,), "int32")
PARTS = (
    Part("image", 0, IMAGE),
    Part("speed", 60, SPEED),
    Part("gear", 63, GEAR),
    Part("keys", 67, KEYS),
    Part("count", 72, COUNT),
)
SPACE = Box((74,), parts=PARTS)


def observed(rows=4, seed=0):
    """(flattened observations [rows, 74], the parts as they were)."""
    rng = np.random.default_rng(seed)
    image, speed = rng.integers(0, 256, (rows, 6, 5, 2)), rng.standard_normal((rows, 3)).astype(np.float32)
    gear, keys, count = rng.integers(0, 4, rows), rng.integers(0, (2, 3), (rows, 2)), rng.integers(0, 5, (rows, 2))
    hot = [np.eye(4)[gear], np.eye(2)[keys[:, 0]], np.eye(3)[keys[:, 1]]]
    flat = np.concatenate([image.reshape(rows, -1), speed, *hot, count], 1).astype(np.float32)
    return flat, {"image": image / 255, "speed": speed, "gear": gear, "keys": keys, "count": count, "hot": hot}


def network(*layers, observation=SPACE):
    return Network(NetworkSpec(list(layers)), observation)


def reading(*names, **options):
    return {"type": "input", "names": list(names), **options}


def named(name):
    return {"type": "output", "name": name}


def test_each_branch_reads_its_parts_and_the_last_one_ends_the_network():
    torso = network(
        [reading("image"), {"type": "conv2d", "size": 3}, {"type": "flatten"}, named("seen")],
        [reading("speed", "gear"), {"type": "dense", "size": 4, "activation": "tanh"}, named("moved")],
        [reading("seen", "moved"), {"type": "linear", "size": 5}],
    )
    params = torso.init(np.random.default_rng(0))
    flat, parts = observed()
    seen = nn.relu(nn.Conv(3, (3, 3)).apply({"params": params["1_conv2d"]}, parts["image"])).reshape(4, -1)
    inputs = np.concatenate([parts["speed"], parts["hot"][0]], 1)
    moved = np.tanh(nn.Dense(4).apply({"params": params["5_dense"]}, inputs))
    expected = nn.Dense(5).apply({"params": params["8_linear"]}, np.concatenate([seen, moved], 1))
    np.testing.assert_allclose(torso.apply(params, flat), expected, atol=1e-4)
    twice = np.stack([flat, flat[::-1]])
    np.testing.assert_allclose(torso.apply(params, twice)[1], expected[::-1], atol=1e-4)


@pytest.mark.parametrize(
    ("aggregation", "join"),
    [("sum", np.add), ("product", np.multiply), ("max", np.maximum), ("mean", lambda a, b: (a + b) / 2)],
)
def test_branches_of_one_shape_are_joined_elementwise(aggregation, join):
    torso = network(
        [reading("speed"), {"type": "linear", "size": 4}, named("a")],
        [reading("speed"), {"type": "linear", "size": 4}, named("b")],
        [reading("a", "b", aggregation_type=aggregation)],
    )
    params = torso.init(np.random.default_rng(0))
    flat, parts = observed()
    a, b = (parts["speed"] @ params[name]["kernel"] for name in ("1_linear", "4_linear"))
    np.testing.assert_allclose(torso.apply(params, flat), join(a, b), atol=1e-5)


def test_images_are_joined_along_any_axis():
    flat, parts = observed()
    for axis, own in ((-1, -1), (3, -1), (1, 1), (-2, 2)):
        torso = network(reading("image", "image", axis=axis), {"type": "flatten"})
        expected = np.concatenate([parts["image"]] * 2, axis=own).reshape(4, -1)
        np.testing.assert_allclose(torso.apply({}, flat), expected, atol=1e-6)


def test_embeddings_look_up_the_choices_of_a_part():
    flat, parts = observed()
    for name, indices in (("gear", 4), ("keys", 3), ("count", 5)):
        torso = network(reading(name), {"type": "embedding", "indices": indices, "size": 2}, {"type": "flatten"})
        params = torso.init(np.random.default_rng(0))
        expected = params["1_embedding"]["embedding"][parts[name]].reshape(4, -1)
        np.testing.assert_array_equal(torso.apply(params, flat), expected)


def test_an_output_passes_its_features_on():
    torso = network(
        reading("speed"), {"type": "dense", "size": 4}, named("a"), {"type": "dense", "size": 4}, reading("a", "*")
    )
    params = torso.init(np.random.default_rng(0))
    flat, parts = observed()
    first = nn.relu(parts["speed"] @ params["1_dense"]["kernel"])
    second = nn.relu(first @ params["3_dense"]["kernel"])
    np.testing.assert_allclose(torso.apply(params, flat), np.concatenate([first, second], 1), atol=1e-5)


@pytest.mark.parametrize("name", ["state", "observation", "*"])
def test_an_observation_without_parts_has_a_name_too(name):
    torso = network(reading(name), {"type": "dense", "size": 4}, observation=Box((3,)))
    params = torso.init(np.random.default_rng(0))
    x = observed()[1]["speed"]
    np.testing.assert_allclose(torso.apply(params, x), nn.relu(x @ params["1_dense"]["kernel"]), atol=1e-5)


def test_a_network_that_reads_everything_gets_bytes_scaled():
    torso = network({"type": "nonlinearity", "name": "none"})
    flat, parts = observed()
    features = np.asarray(torso.apply({}, flat))
    np.testing.assert_allclose(features[:, :60], parts["image"].reshape(4, -1), atol=1e-6)
    np.testing.assert_array_equal(features[:, 60:], flat[:, 60:])


def test_observations_with_images_get_a_branch_for_each_of_them():
    layers = default_layers(SPACE)
    assert [layer.type for layer in layers.root] == [
        *("input", "conv2d", "conv2d", "flatten", "dense", "output", "input", "dense")
    ]
    assert layers.root[6].names == ["image/features", "speed", "gear", "keys", "count"]
    torso = Network(layers, SPACE)
    assert torso.features == 256
    assert torso.apply(torso.init(np.random.default_rng(0)), observed()[0]).shape == (4, 256)
    without = Box((7,), parts=(Part("speed", 0, SPEED), Part("gear", 3, GEAR)))
    assert [layer.type for layer in default_layers(without).root] == ["dense", "dense"]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([reading("imag")], ("layer 0 (input)", '"imag"', 'did you mean "image"?')),
        ([reading("nothing")], ("layer 0 (input)", "image, speed, gear, keys, count")),
        (
            [reading("image", "speed"), {"type": "conv2d", "size": 3}],
            ("layer 0 (input)", "(6, 5, 2) and (3,)", "flatten"),
        ),
        (
            [reading("speed", "gear", aggregation_type="sum"), {"type": "dense", "size": 3}],
            ("layer 0 (input)", "sum of the shapes (3,) and (4,)"),
        ),
        ([reading("speed", "gear", axis=2)], ("layer 0 (input)", "axis 2")),
        ([reading("speed"), named("gear")], ("layer 1 (output)", '"gear"', "choose another")),
        ([reading("speed"), named("a"), named("a")], ("layer 2 (output)", '"a"')),
        ([reading("speed"), {"type": "embedding", "indices": 4, "size": 2}], ("layer 1 (embedding)", "float32")),
        (
            [reading("gear"), {"type": "embedding", "indices": 3, "size": 2}],
            ("layer 1 (embedding)", "set indices to 4"),
        ),
        (
            [reading("gear", "keys"), {"type": "embedding", "indices": 4, "size": 2}],
            ("layer 0 (input)", "before an embedding"),
        ),
    ],
)
def test_branches_that_do_not_fit_are_named(layers, words):
    with pytest.raises(SpecError) as caught:
        network(*layers)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_error_for_an_observation_without_parts_says_so():
    with pytest.raises(SpecError, match='no parts: its name is "state"'):
        network(reading("image"), observation=Box((3,)))
