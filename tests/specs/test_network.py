import pytest

from steppe.errors import SpecError
from steppe.specs.network import Conv2d, Dense, NetworkSpec, Pool2d
from steppe.specs.validation import validate


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


DENSE = {"type": "dense", "size": 8}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ([DENSE, {"type": "dens", "size": 8}], 'unknown layer "dens" in n.json at [1].type; did you mean "dense"?'),
        (
            [{"type": "attention"}],
            'unknown layer "attention" in n.json at [0].type; it must be "dense", "linear", "conv1d", "conv2d", '
            '"pool2d", "flatten", "dropout", "nonlinearity", "embedding" or "layer_norm"',
        ),
        ([{"size": 8}], 'missing field "type" in n.json at [0]; it has no default, so it must be given'),
        ([{"type": "dense"}], 'missing field "size" in n.json at [0]; it has no default, so it must be given'),
        ([DENSE | {"sise": 8}], 'unknown field "sise" in n.json at [0].sise; did you mean "size"?'),
        ([DENSE | {"size": -1}], "wrong value -1 in n.json at [0].size; it must be at least 1"),
        ([DENSE | {"size": "big"}], 'wrong value "big" in n.json at [0].size; it must be a whole number'),
        ([DENSE | {"activation": "crelu"}], 'unknown value "crelu" in n.json at [0].activation; did you mean "relu"?'),
        ([{"type": "dropout", "rate": 1.5}], "wrong value 1.5 in n.json at [0].rate; it must be at most 1"),
        (["dense"], 'wrong value "dense" in n.json at [0]; it must be an object'),
        ([], "wrong value [] in n.json; it must have at least 1 item"),
        (DENSE, 'wrong value {"type": "dense", "size": 8} in n.json; it must be a list'),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(NetworkSpec, written, source="n.json")
    assert str(error.value) == sentence
