"""Value networks in TensorForce's words."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from steppe.errors import SpecError
from steppe.specs._base import Spec
from steppe.specs.learning.baseline import BaselineSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.loading.validation import validate


class Holder(Spec):
    """An agent's settings with a baseline."""

    baseline: BaselineSpec | None = None
    """The value network."""


def read(baseline):
    return validate(Holder, {"baseline": baseline}, source="agent.json").baseline


def test_an_mlp_is_dense_layers_of_its_sizes():
    layers = read({"type": "mlp", "sizes": [32, 16]}).layers()
    assert layers == NetworkSpec([{"type": "dense", "size": n, "activation": "relu"} for n in (32, 16)])


def test_a_cnn_is_convolutions_and_then_dense_layers():
    layers = read({"type": "cnn", "conv_sizes": [8, 4], "dense_sizes": [32]}).layers()
    assert [layer.type for layer in layers.root] == ["conv2d", "conv2d", "flatten", "dense"]
    assert [layer.size for layer in layers.root if layer.type != "flatten"] == [8, 4, 32]
    assert [(layer.window, layer.stride, layer.activation) for layer in layers.root[:2]] == [
        (5, 1, "relu"),
        (3, 1, "relu"),
    ]
    assert layers.root[-1].activation == "relu"
    assert [layer.type for layer in read({"type": "cnn", "conv_sizes": [8]}).layers().root] == ["conv2d", "flatten"]


@pytest.mark.parametrize("word", ["network", "custom"])
def test_a_network_is_its_own_layers(word):
    own = [{"type": "dense", "size": 3}, {"type": "lstm", "size": 4}]
    assert read({"type": word, "network": own}).layers() == NetworkSpec(own)


def test_an_aggregated_baseline_of_one_state_is_that_baseline():
    inner = {"type": "mlp", "sizes": [5]}
    assert read({"type": "aggregated", "baselines": {"state": inner}}).layers() == read(inner).layers()
    nested = {"type": "aggregated", "baselines": {"all": {"type": "aggregated", "baselines": {"state": inner}}}}
    assert read(nested).layers() == read(inner).layers()


def test_every_baseline_comes_back_from_its_dump():
    reader = TypeAdapter(BaselineSpec)
    for written in (
        {"type": "mlp", "sizes": [5]},
        {"type": "cnn", "conv_sizes": [5], "dense_sizes": [3]},
        {"type": "network", "network": [{"type": "dense", "size": 3}]},
        {"type": "aggregated", "baselines": {"state": {"type": "mlp", "sizes": [5]}}},
    ):
        spec = read(written)
        assert reader.validate_python(spec.model_dump()) == spec
        assert reader.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("baseline", "sentence"),
    [
        (
            {"type": "mpl", "sizes": [4]},
            r'^unknown baseline "mpl" in agent\.json at baseline\.type; did you mean "mlp"\?',
        ),
        ({"type": "mlp"}, r'^missing field "sizes" in agent\.json at baseline'),
        ({"type": "mlp", "sizes": []}, r"at baseline\.sizes; it must have at least 1 item"),
        ({"type": "mlp", "sizes": [0]}, r"at baseline\.sizes\[0\]; it must be at least 1"),
        ({"type": "mlp", "size": [4]}, r'^unknown field "size".*did you mean "sizes"'),
        (
            {"type": "network", "network": [{"type": "dens", "size": 4}]},
            r'at baseline\.network\[0\]\.type; did you mean "dense"',
        ),
        (
            {"type": "aggregated", "baselines": {name: {"type": "mlp", "sizes": [4]} for name in "ab"}},
            r"at baseline\.baselines; an environment is observed as one state",
        ),
        ({"type": "aggregated", "baselines": {}}, r"at baseline\.baselines; it must have at least 1 item"),
    ],
)
def test_mistakes_are_named_with_their_place_and_the_nearest_word(baseline, sentence):
    with pytest.raises(SpecError, match=sentence):
        read(baseline)
