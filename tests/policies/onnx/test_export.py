"""Exported models, run by onnxruntime, against the policies they came from."""

from __future__ import annotations

import builtins
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest

from steppe.errors import MissingExtra, StorageError, UserError
from steppe.policies.policy import Policy, PolicyDescription, tensor_shapes
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.learning.layer_options import Activation
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part

ACTIVATIONS = get_args(Activation)
DENSE = [{"type": "dense", "size": 16, "activation": "tanh"}]
BYTES = ((0.0,), (255.0,), "uint8")


def make_policy(observation, action=None, layers=DENSE, kind="categorical", normalizer=None, stages=(), **head):
    preprocessing = Preprocessing(PreprocessingSpec.model_validate(stages), observation) if stages else None
    spaces = (observation if preprocessing is None else preprocessing.space, action or Discrete(3))
    head = {"kind": kind, **head}
    network = NetworkSpec(layers)
    description = PolicyDescription("test", "Test-v0", 7, *spaces, network, head, normalizer, preprocessing)
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[:-1], dtype=int)))
        for name, shape in tensor_shapes(description).items()
    }
    if normalizer:
        tensors["normalizer/var"] = np.square(tensors["normalizer/var"]) + 0.1
    return Policy(description, tensors)


def observations(space, batch):
    rng = np.random.default_rng(1)
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, batch)
    if isinstance(space, MultiDiscrete):
        return rng.integers(0, space.nvec, (batch, len(space.nvec)))
    if space.dtype == "uint8":
        return rng.integers(0, 256, (batch, *space.shape), np.uint8)
    return rng.standard_normal((batch, *space.shape)).astype(np.float32)


def assert_model_equals(policy, folder, batch=5):
    space = policy.description.shown
    path = policy.export_onnx(folder / "deep" / "policy.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    raw = observations(space, batch)
    given = raw.astype(np.float32 if isinstance(space, Box) else np.int64)
    action, outputs = session.run(["action", "outputs"], {"observation": given})
    np.testing.assert_allclose(outputs, policy.outputs(raw), atol=1e-5, rtol=1e-5)
    expected = policy.act(raw)
    assert action.shape == expected.shape
    np.testing.assert_allclose(action, expected, atol=1e-5, rtol=1e-5)
    return action


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_the_policy(tmp_path, activation):
    layers = [{"type": "dense", "size": 9, "activation": activation}, {"type": "nonlinearity", "name": activation}]
    assert_model_equals(make_policy(Box((4,)), layers=layers), tmp_path)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (4, 3), (2, 2)])
def test_windows_equal_the_policy_for_odd_sizes(tmp_path, padding, window, stride):
    spatial = {"window": window, "stride": stride, "padding": padding}
    image = Box((13, 10, 2))
    assert_model_equals(make_policy(image, layers=[{"type": "conv2d", "size": 4, **spatial}]), tmp_path)
    assert_model_equals(make_policy(Box((11, 2)), layers=[{"type": "conv1d", "size": 4, **spatial}]), tmp_path)
    for kind in ("max", "average"):
        pool = [{"type": "pool2d", "pooling_type": kind, **spatial}]
        assert_model_equals(make_policy(image, layers=pool), tmp_path)


@pytest.mark.parametrize("shape", [(3, 12, 10), (12, 10, 3)])
def test_every_layer_on_images_of_bytes_equals_the_policy(tmp_path, shape):
    layers = [
        {"type": "conv2d", "size": 4, "bias": False},
        {"type": "layer_norm"},
        {"type": "pool2d"},
        {"type": "dropout"},
        {"type": "flatten"},
        {"type": "linear", "size": 6, "bias": False},
        {"type": "layer_norm"},
        {"type": "dense", "size": 5},
    ]
    assert_model_equals(make_policy(Box(shape, *BYTES), layers=layers), tmp_path)


@pytest.mark.parametrize("space", [Discrete(4, start=2), MultiDiscrete((2, 4))])
def test_choices_equal_the_policy(tmp_path, space):
    assert_model_equals(make_policy(space), tmp_path)
    embedding = [{"type": "embedding", "indices": 4, "size": 3}, {"type": "dense", "size": 5}]
    assert_model_equals(make_policy(space, layers=embedding), tmp_path)


def test_normalisation_is_included(tmp_path):
    assert_model_equals(make_policy(Box((4,)), normalizer={"clip": 0.7}), tmp_path)
    assert_model_equals(make_policy(Box((2, 3)), normalizer={"clip": 10.0}), tmp_path)
    assert_model_equals(make_policy(Box((3, 2), *BYTES), normalizer={"clip": 10.0}), tmp_path)


def test_actions_of_every_kind_have_the_form_of_the_environment(tmp_path):
    box = Box((2, 1), (-0.05, float("-inf")), (0.05, float("inf")))
    action = assert_model_equals(make_policy(Box((4,)), box, kind="gaussian"), tmp_path, batch=20)
    assert np.abs(action[:, 0]).max() == np.float32(0.05)
    assert_model_equals(make_policy(Box((4,)), Box((2,), (-1.0,), (1.0,), "float64"), kind="gaussian"), tmp_path)
    whole = assert_model_equals(make_policy(Box((4,)), Box((2,), (-1.0,), (1.0,), "int64"), kind="gaussian"), tmp_path)
    assert whole.dtype == np.int64
    assert_model_equals(make_policy(Box((4,)), Discrete(4, start=-2), kind="q_values"), tmp_path)
    assert_model_equals(make_policy(Box((4,)), kind="q_values", dueling=True), tmp_path)
    assert_model_equals(make_policy(Box((4,)), MultiDiscrete((2, 3))), tmp_path)


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("deterministic", Box((2, 1), (-1.0, 3.0), (2.0, 4.0))),
        ("squashed_gaussian", Box((2,), (-1.0,), (0.5,))),
        ("beta", Box((2,), (-1.0, 0.0), (0.5, 9.0))),
        ("bernoulli", Discrete(2, start=3)),
        ("bernoulli", MultiDiscrete((2, 2, 2))),
    ],
)
def test_the_best_action_of_other_heads_equals_the_policys(tmp_path, kind, action):
    taken = assert_model_equals(make_policy(Box((4,)), action, kind=kind), tmp_path, batch=20)
    assert len(np.unique(taken, axis=0)) > 1


def test_each_choice_of_a_dueling_head_is_centred_by_itself(tmp_path):
    assert_model_equals(make_policy(Box((4,)), MultiDiscrete((2, 3)), kind="q_values", dueling=True), tmp_path)


FRAME = Box((20, 16, 3), *BYTES)


@pytest.mark.parametrize(
    ("space", "stages"),
    [
        (FRAME, [{"type": "image_resize", "width": 9, "height": 8}, "grayscale", {"type": "divide", "scale": 255}]),
        (FRAME, ["grayscale", {"type": "image_resize", "width": 30, "height": 40}]),
        (FRAME, ["grayscale", {"type": "divide", "scale": 10}, {"type": "clip", "min": 2, "max": 20}]),
        (Box((6, 5)), ["standardize", {"type": "expand_dims"}]),
        (Box((6, 5)), ["normalize", "flatten"]),
    ],
)
def test_preprocessing_is_included(tmp_path, space, stages):
    assert_model_equals(make_policy(space, stages=stages), tmp_path)


@pytest.mark.parametrize(
    ("space", "stages", "layers"),
    [
        (FRAME, ["grayscale", {"type": "sequence", "length": 3}], DENSE),
        (FRAME, [{"type": "sequence", "length": 2}, {"type": "divide", "scale": 255}], DENSE),
        (Box((5,)), [{"type": "sequence", "length": 4, "add_rank": True}, "flatten"], DENSE),
        (Box((5,)), [{"type": "sequence"}, {"type": "clip", "min": -1, "max": 1}, {"type": "sequence"}], DENSE),
        (Box((5,)), [{"type": "sequence"}], [{"type": "lstm", "size": 4}]),
    ],
    ids=["grey frames", "colours", "a new axis", "two sequences", "before an lstm"],
)
def test_frames_are_stacked_in_the_model(tmp_path, space, stages, layers):
    policy = make_policy(space, stages=stages, layers=layers)
    path = policy.export_onnx(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    frames = observations(space, 12).reshape(6, 2, *space.shape)
    state = policy.initial_state((2,))
    remembered = {name: each.astype(np.float32) for name, each in state.items()}
    names = [each.name for each in session.get_outputs()]
    assert names == ["action", "outputs", *(f"next/{name}" for name in state)]
    for t, both in enumerate(frames):
        if t == 3:
            # The second episode ends earlier than the first.
            for each in (*state.values(), *remembered.values()):
                each[1] = 0
        expected, state = policy.outputs_after(both, state)
        found = dict(zip(names, session.run(None, {"observation": both.astype(np.float32)} | remembered), strict=True))
        np.testing.assert_allclose(found["outputs"], expected, atol=1e-5, rtol=1e-5)
        assert found["action"].tolist() == expected.argmax(-1).tolist()
        remembered = {name: found[f"next/{name}"] for name in state}
        for name, each in state.items():
            np.testing.assert_allclose(remembered[name], each, atol=1e-5)


def test_the_same_policy_is_always_the_same_bytes(tmp_path):
    policy = make_policy(Box((4,)), normalizer={"clip": 0.7})
    first, second = (policy.export_onnx(tmp_path / name).read_bytes() for name in ("a.onnx", "b.onnx"))
    assert first == second


def test_an_unwritable_path_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/policy\.onnx"):
        make_policy(Box((4,))).export_onnx(tmp_path / "file" / "policy.onnx")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_that_differ_by_axis_equal_the_policy(tmp_path, padding):
    spatial = {"window": [2, 5], "stride": [3, 1], "padding": padding}
    for layer in ({"type": "conv2d", "size": 4}, {"type": "pool2d", "pooling_type": "average"}):
        assert_model_equals(make_policy(Box((13, 10, 2)), layers=[{**layer, **spatial}]), tmp_path)


@pytest.mark.parametrize(
    "layers",
    [
        [{"type": "dense", "skip": True, "activation": "tanh"}] * 2,
        [{"type": "dense", "skip": True, "bias": False}],
        [{"type": "nonlinearity", "name": "tanh", "beta": 0.5, "max": 0.4, "min": -1.0}],
        [{"type": "nonlinearity", "name": "leaky_relu", "alpha": 0.3, "beta": "learn"}],
        [{"type": "nonlinearity", "name": "swish", "beta": 2.0}],
    ],
)
def test_other_layers_equal_the_policy(tmp_path, layers):
    assert_model_equals(make_policy(Box((4,)), layers=layers), tmp_path)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_recurrent_policy_takes_and_returns_its_state(tmp_path, kind):
    layers = [{"type": "dense", "size": 6}, {"type": kind, "size": 5}, {"type": "dense", "size": 4}]
    layers += [{"type": kind, "size": 3}]
    policy = make_policy(Box((4,)), layers=layers, normalizer={"clip": 10.0})
    path = policy.export_onnx(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = list(policy.initial_state())
    assert [each.name for each in session.get_inputs()] == ["observation", *names]
    assert [each.name for each in session.get_outputs()] == ["action", "outputs", *(f"next/{name}" for name in names)]
    state = carried = policy.initial_state((5,))
    for t in range(4):
        x = np.random.default_rng(t).standard_normal((5, 4)).astype(np.float32)
        expected, _ = policy.outputs_after(x, state)
        actions, state = policy.advance(x, state)
        action, outputs, *after = session.run(None, {"observation": x, **carried})
        carried = dict(zip(names, after, strict=True))
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        np.testing.assert_array_equal(action, actions)
        for name in names:
            np.testing.assert_allclose(carried[name], state[name], atol=1e-5)


@pytest.mark.parametrize("aggregation", ["concat", "sum", "product", "max", "mean"])
def test_branches_equal_the_policy(tmp_path, aggregation):
    parts = (Part("image", 0, Box((2, 6, 5), *BYTES)), Part("speed", 60, Box((3,))), Part("gear", 63, Discrete(4)))
    parts += (Part("keys", 67, MultiDiscrete((2, 3))), Part("count", 72, Box((2,), (0.0,), (4.0,), "int32")))
    space = Box((74,), parts=parts)

    def branch(*names):
        return [{"type": "input", "names": list(names)}]

    def ending(name):
        return [{"type": "dense", "size": 4}, {"type": "output", "name": name}]

    def embedding(indices):
        return [{"type": "embedding", "indices": indices, "size": 2}]

    layers = [
        branch("image") + [{"type": "conv2d", "size": 3}, *ending("a")],
        branch("speed", "gear") + ending("b"),
        branch("gear") + embedding(4) + ending("c"),
        branch("keys") + embedding(3) + ending("d"),
        branch("count") + embedding(5) + ending("e"),
        [{"type": "input", "names": ["a", "b", "c", "d", "e"], "aggregation_type": aggregation}],
    ]
    policy = make_policy(space, layers=layers)
    rng = np.random.default_rng(0)
    hot = [np.eye(n)[rng.integers(0, n, 4)] for n in (4, 2, 3)]
    numbers = [rng.integers(0, 256, (4, 60)), rng.standard_normal((4, 3))]
    x = np.concatenate([*numbers, *hot, rng.integers(0, 5, (4, 2))], 1).astype(np.float32)
    for own in (policy, make_policy(space)):
        session = onnxruntime.InferenceSession(own.export_onnx(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
        (outputs,) = session.run(["outputs"], {"observation": x})
        np.testing.assert_allclose(outputs, own.outputs(x), atol=1e-5, rtol=1e-5)


def test_a_policy_without_a_network_is_refused(tmp_path):
    policy = Policy(PolicyDescription("random", "Test-v0", 0, Box((4,)), Discrete(2)), {})
    with pytest.raises(UserError, match='"random"'):
        policy.export_onnx(tmp_path / "policy.onnx")


def test_without_the_onnx_package_the_extra_is_named(tmp_path, monkeypatch):
    policy = make_policy(Box((4,)))
    actual = builtins.__import__

    def without_onnx(name, *args, **settings):
        if name == "onnx":
            raise ImportError(name)
        return actual(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(MissingExtra, match=r"steppe\[onnx\]"):
        policy.export_onnx(tmp_path / "policy.onnx")
