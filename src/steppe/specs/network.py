"""Networks as lists of layers, in TensorForce's words: `[{"type": "dense", "size": 64, "activation": "tanh"}, ...]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, RootModel

from steppe.specs._base import Count, Flag, Spec, Unit

Activation = Literal[
    "relu", "elu", "selu", "sigmoid", "swish", "leaky_relu", "softplus", "softsign", "softmax", "tanh", "gelu", "none"
]
Pooling = Literal["max", "average"]
Padding = Literal["SAME", "VALID"]

_OTHER_SPELLINGS = {"lrelu": "leaky_relu", "mean": "average", "same": "SAME", "valid": "VALID"}


def _usual_spelling(word: Any) -> Any:
    return _OTHER_SPELLINGS.get(word, word) if isinstance(word, str) else word


_Activation = Annotated[Activation, BeforeValidator(_usual_spelling)]
_Pooling = Annotated[Pooling, BeforeValidator(_usual_spelling)]
_Padding = Annotated[Padding, BeforeValidator(_usual_spelling)]


class Dense(Spec):
    """A fully connected layer."""

    type: Literal["dense"]
    size: Count
    """How many outputs."""
    activation: _Activation = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""


class Linear(Spec):
    """A fully connected layer without a nonlinearity."""

    type: Literal["linear"]
    size: Count
    """How many outputs."""
    bias: Flag = True
    """Whether a bias is added."""


class Conv1d(Spec):
    """A convolution over a sequence: length x channels."""

    type: Literal["conv1d"]
    size: Count
    """How many filters."""
    window: Count = 3
    """How many positions a filter sees."""
    stride: Count = 1
    """How far it moves each time."""
    padding: _Padding = "SAME"
    """SAME pads with zeros, VALID does not."""
    activation: _Activation = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""


class Conv2d(Spec):
    """A convolution over an image: height x width x channels."""

    type: Literal["conv2d"]
    size: Count
    """How many filters."""
    window: Count = 3
    """The filter's height and width."""
    stride: Count = 1
    """How far it moves each time."""
    padding: _Padding = "SAME"
    """SAME pads with zeros, VALID does not."""
    activation: _Activation = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""


class Pool2d(Spec):
    """The maximum or the mean of each window of an image."""

    type: Literal["pool2d"]
    pooling_type: _Pooling = "max"
    """What is taken of each window."""
    window: Count = 2
    """The window's height and width."""
    stride: Count = 2
    """How far it moves each time."""
    padding: _Padding = "SAME"
    """SAME pads at the borders, VALID does not."""


class Flatten(Spec):
    """All axes of one observation into one vector."""

    type: Literal["flatten"]


class Dropout(Spec):
    """Sets a random share of its inputs to zero while learning; does nothing while acting."""

    type: Literal["dropout"]
    rate: Unit = 0.1
    """The share that is dropped."""


class Nonlinearity(Spec):
    """A nonlinearity by itself."""

    type: Literal["nonlinearity"]
    name: _Activation = "relu"
    """Which one."""


class Embedding(Spec):
    """A learned vector for each whole number that can be observed."""

    type: Literal["embedding"]
    indices: Count
    """How many numbers there are: observations lie in 0 .. indices - 1."""
    size: Count
    """The length of each vector."""


class LayerNorm(Spec):
    """Shifts and scales each sample's features to mean 0 and variance 1, then by learned factors."""

    type: Literal["layer_norm"]


Layer = Annotated[
    Dense | Linear | Conv1d | Conv2d | Pool2d | Flatten | Dropout | Nonlinearity | Embedding | LayerNorm,
    Field(discriminator="type", title="layer"),
]


class NetworkSpec(RootModel[list[Layer]]):
    """The layers between the observation and the agent's output, first to last; the agent adds its own output layer."""

    root: Annotated[list[Layer], Field(min_length=1)]
