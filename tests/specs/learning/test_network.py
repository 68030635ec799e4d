import json
import re

import pytest

from steppe.errors import SpecError
from steppe.policies.layers import plan
from steppe.spec_files import read_network
from steppe.specs.describing.json_schema import schema_of
from steppe.specs.learning.network import Conv2d, Custom, Dense, Input, NetworkSpec, Nonlinearity, Output, Pool2d
from steppe.specs.loading.validation import validate
from steppe.specs.spaces import Box
from steppe.tensorforce import translate_network


def test_layers_are_read_with_their_defaults_and_other_spellings():
    network = validate(
        NetworkSpec,
        [
            {"type": "conv2d", "size": 32, "window": 8.0, "padding": "valid"},
            {"type": "pool2d", "pooling_type": "mean"},
            {"type": "dense", "size": 64, "activation": "lrelu"},
        ],
    )
    assert network.root == [
        Conv2d(type="conv2d", size=32, window=8, stride=1, padding="VALID", activation="relu", bias=True),
        Pool2d(type="pool2d", pooling_type="average", window=2, stride=2, padding="SAME"),
        Dense(type="dense", size=64, activation="leaky_relu", bias=True),
    ]


def test_windows_and_strides_of_images_may_differ_by_axis():
    network = validate(NetworkSpec, [{"type": "conv2d", "size": 4, "window": [3, 5.0], "stride": [2, 2]}])
    assert (network.root[0].window, network.root[0].stride) == ((3, 5), 2)


def test_tensorforces_options_are_honoured():
    network = read_network(
        [
            {"type": "dense", "skip": True, "activation": {"name": "tanh"}, "l2_regularization": 0.1},
            {"type": "nonlinearity", "name": "lrelu", "alpha": 0.2, "beta": "learn", "max": 3, "min": -1},
            {"type": "internal_lstm", "size": 8, "dropout": None},
        ],
    )
    assert network.root[0] == Dense(type="dense", skip=True, activation="tanh", l2_regularization=0.1)
    assert network.root[1] == Nonlinearity(
        type="nonlinearity", name="leaky_relu", alpha=0.2, beta="learn", max=3.0, min=-1.0
    )
    assert network.is_recurrent
    assert not NetworkSpec([DENSE]).is_recurrent


def test_a_layer_of_ones_own_is_named_by_its_path():
    expected = Custom(type="custom", module="my_layers.deep:MyLayer", arguments={"size": 4})
    for written in ("my_layers.deep:MyLayer", "my_layers.deep.MyLayer"):
        network = validate(NetworkSpec, [{"type": written, "size": 4}])
        assert network.root == [expected]
    assert NetworkSpec.model_validate(json.loads(json.dumps(network.model_dump()))) == network
    assert hash(expected) == hash(Custom(type="custom", module="my_layers.deep:MyLayer", arguments={"size": 4}))


BRANCHES = [
    [{"type": "input", "names": "image"}, {"type": "flatten"}, {"type": "output", "name": "seen"}],
    [{"type": "input", "inputs": ["seen", "speed"], "aggregation_type": "concat"}, {"type": "dense", "size": 8}],
]


def test_a_list_of_branches_is_one_list_of_layers():
    network = validate(NetworkSpec, BRANCHES)
    assert network == NetworkSpec([*BRANCHES[0], *BRANCHES[1]])
    assert network.root[0] == Input(type="input", names=["image"])
    assert network.root[2] == Output(type="output", name="seen")
    assert validate(NetworkSpec, [{"type": "output", "output": "seen"}]).root == [network.root[2]]


def test_a_dueling_last_layer_is_told_and_taken_off():
    network = validate(NetworkSpec, [DENSE, {"type": "dueling", "size": 4}])
    assert network.is_dueling
    assert network.root[-1].size == 4
    assert network.without_dueling() == NetworkSpec([DENSE])
    assert NetworkSpec([DENSE]).without_dueling() == NetworkSpec([DENSE])
    assert [layer.type for layer in NetworkSpec([{"type": "dueling"}]).without_dueling().root] == ["flatten"]


def test_the_schema_allows_what_files_may_hold():
    one, several = schema_of("network")["items"]["anyOf"]
    assert several == {"type": "array", "items": one}
    named, own = one["anyOf"]
    assert own["properties"]["type"]["pattern"] == "[:.]"
    assert len(named["oneOf"]) == 17


DENSE = {"type": "dense", "size": 8}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ([DENSE, {"type": "dens", "size": 8}], 'unknown layer "dens" in n.json at [1].type; did you mean "dense"?'),
        (
            [{"type": "attention"}],
            'unknown layer "attention" in n.json at [0].type; it must be "dense", "linear", "conv1d", "conv2d", '
            '"pool2d", "flatten", "dropout", "nonlinearity", "embedding", "layer_norm", "lstm", "internal_lstm", '
            '"gru", "dueling", "input", "output" or "custom"',
        ),
        ([{"size": 8}], 'missing field "type" in n.json at [0]; it has no default, so it must be given'),
        ([{"type": "linear"}], 'missing field "size" in n.json at [0]; it has no default, so it must be given'),
        (
            [{"type": "dense"}],
            'wrong settings in n.json at [0]; the field "size" is missing: how many outputs a dense layer has',
        ),
        ([DENSE | {"sise": 8}], 'unknown field "sise" in n.json at [0].sise; did you mean "size"?'),
        ([DENSE | {"size": -1}], "wrong value -1 in n.json at [0].size; it must be at least 1"),
        ([DENSE | {"size": "big"}], 'wrong value "big" in n.json at [0].size; it must be a whole number'),
        ([DENSE | {"activation": "crlu"}], 'unknown value "crlu" in n.json at [0].activation; did you mean "crelu"?'),
        ([{"type": "dropout", "rate": 1.5}], "wrong value 1.5 in n.json at [0].rate; it must be at most 1"),
        (["dense"], 'wrong value "dense" in n.json at [0]; it must be an object'),
        ([], "wrong value [] in n.json; it must have at least 1 item"),
        (DENSE, 'wrong value {"type": "dense", "size": 8} in n.json; it must be a list'),
        (
            [{"type": "conv2d", "size": 8, "window": [3, 3, 3]}],
            "wrong value [3, 3, 3] in n.json at [0].window; it must be a whole number of at least 1, or two of them: "
            "[height, width]",
        ),
        (
            [{"type": "pool2d", "stride": True}],
            "wrong value true in n.json at [0].stride; it must be a whole number of at least 1, or two of them: "
            "[height, width]",
        ),
        (
            [{"type": "batch_normalization"}],
            'wrong settings in n.json at [0]; there is no layer "batch_normalization"; a policy also acts on one '
            'observation alone; write {"type": "layer_norm"} in its place, with no other options, which sees each by '
            "itself",
        ),
        (
            [{"type": "tf_layer", "layer": "batch_normalization", "center": False}],
            'wrong settings in n.json at [0]; "center" of batch_normalization can only be true, as it is in '
            "layer_norm, which takes its place; leave it out",
        ),
        (
            [{"type": "tf_layer", "layer": "batch_normalization", "renorm": True}],
            'wrong settings in n.json at [0]; "renorm" of batch_normalization is not known; the options are center, '
            "scale, axis, momentum, epsilon",
        ),
        (
            [{"type": "global_pooling"}],
            'wrong settings in n.json at [0]; there is no layer "global_pooling"; use "pool2d" with a window as large '
            'as the image, or "flatten"',
        ),
        (
            "cnn",
            'wrong value "cnn" in n.json; it must be a list of layers',
        ),
        (
            [{"type": "tf_layer", "layer": "dense"}],
            "wrong settings in n.json at [0]; layers of TensorFlow do not exist here; use one of Steppe's, or write "
            'your own as a flax module and name it as {"type": "my_layers:MyLayer"}',
        ),
        (
            [DENSE | {"weights": 0.5}],
            'wrong settings in n.json at [0]; "weights" cannot be honoured: first weights are drawn orthogonally; to '
            "begin from others, resume from a checkpoint; leave it out",
        ),
        (
            [DENSE | {"activation": {"name": "relu", "max": 6}}],
            'wrong settings in n.json at [0].activation; write "none" here and a "nonlinearity" layer after this one, '
            "which has these settings",
        ),
        (
            [{"type": "nonlinearity", "name": "tanh", "alpha": 0.1}],
            'wrong settings in n.json at [0]; "alpha" is the slope of "leaky_relu" and means nothing elsewhere',
        ),
        (
            [{"type": "dense", "size": 8, "skip": True}],
            "wrong settings in n.json at [0]; with skip a dense layer has the size of its inputs; leave out size",
        ),
        (
            [{"type": "dueling", "bias": False}],
            "wrong settings in n.json at [0]; the agent makes a dueling layer from its own output layers, so it has no "
            '"bias"',
        ),
        (
            [{"type": "my-layers:MyLayer"}],
            'wrong value "my-layers:MyLayer" in n.json at [0]; it must be the path of a flax module, such as '
            '"my_layers:MyLayer"',
        ),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        read_network(written, "n.json")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ([BRANCHES[0], [{"type": "input", "names": ["a"]}, {"type": "dens"}]], '"dens" at [1][1].type; did you mean'),
        ([BRANCHES[0], [DENSE]], 'the list at [1] must begin with {"type": "input"'),
        ([BRANCHES[0], DENSE], "[1] is no list"),
        ([BRANCHES[0], []], "the list at [1] must begin with"),
    ],
)
def test_a_mistake_in_a_branch_is_named(written, words):
    with pytest.raises(SpecError, match=r"n\.json") as error:
        validate(NetworkSpec, written, source="n.json")
    assert words in str(error.value)


@pytest.mark.parametrize("wrapped", [{"type": "layered", "layers": [DENSE]}, {"layers": [DENSE]}])
def test_a_list_of_layers_may_be_wrapped(wrapped):
    assert read_network(wrapped) == NetworkSpec([DENSE])


@pytest.mark.parametrize("kind", ["dense", "conv2d", "conv1d"])
def test_no_activation_may_be_written_as_null(kind):
    (layer,) = read_network([{"type": kind, "size": 4, "activation": None}]).root
    assert layer.activation == "none"


def test_the_advice_on_batch_normalization_works():
    with pytest.raises(SpecError) as refusal:
        read_network([DENSE, {"type": "batch_normalization"}])
    (advice,) = re.findall(r"write (\{.*?\}) in its place", str(refusal.value))
    plan(validate(NetworkSpec, [DENSE, json.loads(advice)]), Box((3,), (-1.0,) * 3, (1.0,) * 3))


@pytest.mark.parametrize("options", [{}, {"center": True, "scale": True, "axis": -1, "momentum": 0.9, "epsilon": 0.01}])
def test_batch_normalization_of_an_old_file_is_layer_norm_and_is_told(options):
    old = {"type": "tf_layer", "layer": "batch_normalization"} | options
    translation = translate_network([DENSE, old])
    assert translation.data == [DENSE, {"type": "layer_norm"}]
    (notice,) = translation.notices
    assert notice.startswith("batch_normalization is trained as layer_norm")
    branches = [[{"type": "input", "names": ["a"]}, old], [{"type": "input", "names": ["b"]}]]
    assert translate_network(branches).notices == (notice,)
    assert translate_network([DENSE]).notices == ()
    # The experiment.json of a run has no old words.
    assert translate_network(translation.data).notices == ()
