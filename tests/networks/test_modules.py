"""Custom layers in JAX and in NumPy, and where they are refused."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest

from policies import flatten
from steppe.errors import MissingExtra, SpecError, UserError
from steppe.networks import Network
from steppe.policies.policy import Policy, PolicyDescription, load_policy
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

FOLDER = Path(__file__).parent / "own"
GATED = {"type": "steppe_own_layers:Gated", "size": 4, "widths": [6, 5]}
LAYERS = [{"type": "dense", "size": 7}, GATED, {"type": "dense", "size": 3}]


@pytest.fixture(autouse=True)
def _own_layers(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


def network(*layers, observation=None):
    return Network(NetworkSpec(list(layers)), observation or Box((3,)))


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_a_module_is_a_layer_among_others():
    torso = network(*LAYERS)
    params = torso.init(np.random.default_rng(0))
    assert set(params["1_custom"]) == {"Dense_0", "Dense_1", "value", "gate"}
    assert params["1_custom"]["Dense_0"]["kernel"].shape == (7, 6)
    from steppe_own_layers import Gated

    x = floats(5, 3)
    hidden = nn.relu(nn.Dense(7).apply({"params": params["0_dense"]}, x))
    hidden = Gated(4, (6, 5)).apply({"params": params["1_custom"]}, hidden)
    expected = nn.relu(nn.Dense(3).apply({"params": params["2_dense"]}, hidden))
    np.testing.assert_allclose(torso.apply(params, x), expected, atol=1e-5)
    together = torso.apply(params, floats(2, 5, 3))
    np.testing.assert_allclose(together[1], torso.apply(params, floats(2, 5, 3)[1]), atol=1e-5)


def test_flaxs_own_modules_can_be_named():
    torso = network({"type": "flax.linen:Conv", "features": 2, "kernel_size": [3, 3]}, observation=Box((6, 5, 3)))
    params = torso.init(np.random.default_rng(0))
    x = floats(2, 6, 5, 3)
    expected = nn.Conv(2, (3, 3)).apply({"params": params["0_custom"]}, x)
    np.testing.assert_allclose(torso.apply(params, x), expected.reshape(2, -1), atol=1e-5)


def test_parameters_follow_from_the_seed_and_come_as_zeros_without_one():
    torso = network(GATED)
    once, again, empty = torso.init(np.random.default_rng(3)), torso.init(np.random.default_rng(3)), torso.init(None)
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert jax.tree.map(np.shape, empty) == jax.tree.map(np.shape, once)
    assert not any(leaf.any() for leaf in jax.tree.leaves(empty))


def test_dropout_inside_is_active_only_with_a_key():
    torso = network(GATED | {"rate": 0.5})
    assert torso.has_dropout
    params, x = torso.init(np.random.default_rng(0)), floats(5, 3)
    whole = torso.apply(params, x)
    np.testing.assert_array_equal(whole, torso.apply(params, x))
    assert np.any(torso.apply(params, x, jax.random.key(0)) != whole)


def make_policy():
    description = PolicyDescription(
        "test", "Test-v0", 7, Box((3,)), Discrete(2), NetworkSpec(LAYERS), {"kind": "q_values"}
    )
    torso = flatten({"torso": network(*LAYERS).init(np.random.default_rng(0))})
    return Policy(description, {**torso, "head/kernel": floats(3, 2), "head/bias": floats(2)})


def test_a_policy_with_a_module_acts_and_survives_saving(tmp_path):
    policy = make_policy()
    torso = network(*LAYERS)
    params = torso.init(np.random.default_rng(0))
    x = floats(5, 3)
    expected = np.asarray(torso.apply(params, x)) @ floats(3, 2) + floats(2)
    np.testing.assert_allclose(policy.outputs(x), expected, atol=1e-5)
    loaded = load_policy(policy.save(tmp_path), allow_modules="steppe_own_layers")
    np.testing.assert_allclose(loaded.outputs(x), expected, atol=1e-5)


def test_a_policy_with_a_module_is_not_exported_to_onnx(tmp_path):
    with pytest.raises(UserError, match=r'"steppe_own_layers:Gated" is a flax module, which cannot be exported'):
        make_policy().export_onnx(tmp_path / "policy.onnx")


def test_without_flax_the_extra_is_named(monkeypatch):
    actual = builtins.__import__

    def without_flax(name, *args, **settings):
        if name.startswith("flax"):
            raise ImportError(name)
        return actual(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", without_flax)
    with pytest.raises(MissingExtra, match=r'"steppe_own_layers:Gated" needs an optional package.*steppe\[flax\]'):
        network(GATED | {"size": 9})


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"type": "steppe_no_such_module:Layer"}, ('no module "steppe_no_such_module"',)),
        ({"type": "steppe_own_layers:Gate"}, ("not a flax module", 'did you mean "Gated"?')),
        ({"type": "steppe_own_layers:not_a_module"}, ("not a flax module",)),
        ({"type": "os:system", "command": "exit 1"}, ("not a flax module", "subclass of flax.linen.Module")),
        ({"type": "steppe_own_layers:Gated"}, ("raised TypeError", "size")),
        ({"type": "steppe_own_layers:Gated", "size": "big"}, ("{'size': 'big'}", "raised")),
        ({"type": "steppe_own_layers:Counting"}, ('keeps "seen"',)),
        ({"type": "steppe_own_layers:Summing"}, ("features for each row",)),
    ],
)
def test_a_module_that_cannot_be_a_layer_is_refused(layer, words):
    with pytest.raises((SpecError, UserError)) as caught:
        network(layer)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_networks_without_modules_do_not_import_flax():
    program = (
        "import sys, numpy as np\n"
        "from steppe.networks import Network, default_layers\n"
        "from steppe.specs.spaces import Box\n"
        "torso = Network(default_layers(Box((4,))), Box((4,)))\n"
        "torso.apply(torso.init(np.random.default_rng(0)), np.zeros((2, 4), np.float32))\n"
        "assert 'flax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
