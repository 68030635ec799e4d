"""Networks as lists of layers: `[{"type": "dense", "size": 64, "activation": "tanh"}, ...]`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator

from steppe.errors import SpecError
from steppe.specs._base import Count, Flag, ListSpec, Number, Spec, Unit
from steppe.specs.learning.layer_options import (
    L1,
    L2,
    ActivationWord,
    Aggregation,
    OneOrTwo,
    PaddingWord,
    PoolingWord,
    checked_path,
    listed_names,
    named_by_path,
)
from steppe.specs.loading.validation import validate


class Dense(Spec):
    """A fully connected layer."""

    type: Literal["dense"]
    size: Count | None = None
    """The number of outputs; required, except with skip, which keeps the size of its inputs."""
    activation: ActivationWord = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""
    skip: Flag = False
    """Whether it is a residual block: two layers of its inputs' size, and the inputs are added before the last
    nonlinearity."""
    l2_regularization: L2 = 0.0
    l1_regularization: L1 = 0.0

    @model_validator(mode="after")
    def _has_one_size(self) -> Dense:
        if self.size is None and not self.skip:
            raise ValueError('the field "size" is missing: how many outputs a dense layer has')
        if self.size is not None and self.skip:
            raise ValueError("with skip a dense layer has the size of its inputs; leave out size")
        if self.skip and self.activation == "crelu":
            raise ValueError('"crelu" doubles the features, which then cannot be added to the inputs of skip')
        return self


class Linear(Spec):
    """A fully connected layer without a nonlinearity."""

    type: Literal["linear"]
    size: Count
    """The number of outputs."""
    bias: Flag = True
    """Whether a bias is added."""
    l2_regularization: L2 = 0.0
    l1_regularization: L1 = 0.0


class Conv1d(Spec):
    """A convolution over a sequence: length x channels."""

    type: Literal["conv1d"]
    size: Count
    """The number of filters."""
    window: Count = 3
    """The length of a filter."""
    stride: Count = 1
    """The stride."""
    padding: PaddingWord = "SAME"
    """SAME pads with zeros, VALID does not."""
    activation: ActivationWord = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""
    l2_regularization: L2 = 0.0
    l1_regularization: L1 = 0.0


class Conv2d(Spec):
    """A convolution over an image: height x width x channels."""

    type: Literal["conv2d"]
    size: Count
    """The number of filters."""
    window: OneOrTwo = 3
    """The filter's height and width."""
    stride: OneOrTwo = 1
    """The stride."""
    padding: PaddingWord = "SAME"
    """SAME pads with zeros, VALID does not."""
    activation: ActivationWord = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""
    l2_regularization: L2 = 0.0
    l1_regularization: L1 = 0.0


class Pool2d(Spec):
    """The maximum or the mean of each window of an image."""

    type: Literal["pool2d"]
    pooling_type: PoolingWord = "max"
    """The maximum or the mean of each window."""
    window: OneOrTwo = 2
    """The window's height and width."""
    stride: OneOrTwo = 2
    """The stride."""
    padding: PaddingWord = "SAME"
    """SAME pads at the borders, VALID does not."""


class Flatten(Spec):
    """Flattens all axes of one observation into one vector."""

    type: Literal["flatten"]


class Dropout(Spec):
    """Sets a random share of its inputs to zero while learning; does nothing while acting."""

    type: Literal["dropout"]
    rate: Unit = 0.1
    """The share that is dropped."""


class Nonlinearity(Spec):
    """A nonlinearity by itself."""

    type: Literal["nonlinearity"]
    name: ActivationWord = "relu"
    """The nonlinearity."""
    alpha: Number | None = None
    """The slope of leaky_relu for negative inputs; null: 0.01."""
    beta: Number | Literal["learn"] = 1.0
    """A factor of the inputs; "learn" learns it, starting from 1."""
    max: Number | None = None
    """Inputs, times beta, are cut off above this."""
    min: Number | None = None
    """Inputs, times beta, are cut off below this."""

    @model_validator(mode="after")
    def _alpha_has_a_use(self) -> Nonlinearity:
        if self.alpha is not None and self.name != "leaky_relu":
            raise ValueError('"alpha" is the slope of "leaky_relu" and means nothing elsewhere')
        return self


class Embedding(Spec):
    """A learned vector for each whole number that can be observed."""

    type: Literal["embedding"]
    indices: Count
    """The number of embeddings: observations lie in 0 .. indices - 1."""
    size: Count
    """The length of each vector."""
    l2_regularization: L2 = 0.0
    l1_regularization: L1 = 0.0


class LayerNorm(Spec):
    """Shifts and scales each sample's features to mean 0 and variance 1, then by learned factors."""

    type: Literal["layer_norm"]


class Lstm(Spec):
    """Long short-term memory: its state lasts from timestep to timestep and is zero at the start of each episode."""

    type: Literal["lstm"]
    size: Count
    """The number of features that it remembers and outputs."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class InternalLstm(Spec):
    """The same as lstm."""

    type: Literal["internal_lstm"]
    size: Count
    """The number of features that it remembers and outputs."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class Gru(Spec):
    """A gated recurrent unit: like lstm, with a smaller state and fewer weights."""

    type: Literal["gru"]
    size: Count
    """The number of features that it remembers and outputs."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class Dueling(Spec):
    """The last layer of a network for dqn: learns the value of a state and the advantages of its actions separately."""

    type: Literal["dueling"]
    size: Count | None = None
    """The number of actions; it may be left out."""


class Input(Spec):
    """Begins a branch with named parts of the observation, or with outputs of earlier layers by their names."""

    type: Literal["input"]
    names: Annotated[list[str], BeforeValidator(listed_names), Field(min_length=1)] = Field(
        validation_alias=AliasChoices("names", "inputs")
    )
    """The inputs: parts of the observation, names of outputs, or "*" for the output of the layer before."""
    aggregation_type: Aggregation = "concat"
    """The way in which several inputs are combined."""
    axis: int = -1
    """The axis along which concat joins them: -1 is the last, 1 the first after the batch."""

    def __hash__(self) -> int:
        return hash((tuple(self.names), self.aggregation_type, self.axis))


class Output(Spec):
    """Names the output of the layer before, so that an input can read it."""

    type: Literal["output"]
    name: Annotated[str, Field(min_length=1)] = Field(validation_alias=AliasChoices("name", "output"))
    """The name."""


class Custom(Spec):
    """Your own flax.linen module, also written `{"type": "my_layers:MyLayer", ...}` with its arguments in place."""

    type: Literal["custom"]
    module: Annotated[str, AfterValidator(checked_path)]
    """Its path: "module:Class"."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The arguments of its constructor."""

    def __hash__(self) -> int:
        return hash((self.module, json.dumps(self.arguments, sort_keys=True, default=str)))


Layer = Annotated[
    Dense
    | Linear
    | Conv1d
    | Conv2d
    | Pool2d
    | Flatten
    | Dropout
    | Nonlinearity
    | Embedding
    | LayerNorm
    | Lstm
    | InternalLstm
    | Gru
    | Dueling
    | Input
    | Output
    | Custom,
    Field(discriminator="type", title="layer"),
    BeforeValidator(named_by_path),
]

RECURRENT = ("lstm", "internal_lstm", "gru")
"""The layers that keep a state from timestep to timestep."""


class _Branch(ListSpec[list[Layer]]):
    """One of several lists of layers."""


def _as_one_list(data: Any) -> Any:
    """A list of branches as one list of layers, since each branch begins with an input layer anyway.

    The list may be wrapped as {"layers": [...]}, since TOML has no list at the top of a file.
    """
    if isinstance(data, str):
        raise ValueError("it must be a list of layers")
    if isinstance(data, dict) and list(data) == ["layers"]:
        data = data["layers"]
    if not isinstance(data, list) or not any(isinstance(each, list) for each in data):
        return data
    layers: list[Any] = []
    for index, branch in enumerate(data):
        if not isinstance(branch, list):
            raise ValueError(f"a network is a list of layers or a list of such lists, but [{index}] is no list")
        try:
            branch = validate(_Branch, branch, path=f"[{index}]").root
        except SpecError as error:
            raise ValueError(str(error)) from error
        if index > 0 and not (branch and branch[0].type == "input"):
            raise ValueError(f'the list at [{index}] must begin with {{"type": "input", "names": [...]}}')
        layers += branch
    return layers


class NetworkSpec(ListSpec[list[Layer]]):
    """The layers between the observation and the agent's output, first to last; the agent adds its own output layer.

    A list of lists is a network with branches, each from an `input` to an `output`; the last one ends the network.
    """

    root: Annotated[list[Layer], Field(min_length=1), BeforeValidator(_as_one_list)]

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer keeps a state from timestep to timestep."""
        return any(layer.type in RECURRENT for layer in self.root)

    @property
    def is_dueling(self) -> bool:
        """Whether the last layer is a dueling one."""
        return self.root[-1].type == "dueling"

    def without_dueling(self) -> NetworkSpec:
        """The layers without a final dueling one, which the agent makes itself."""
        if not self.is_dueling:
            return self
        return NetworkSpec(self.root[:-1] or [Flatten(type="flatten")])

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """The schema also allows branches, and custom layers given by their path alone."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        own = {"type": "object", "properties": {"type": {"type": "string", "pattern": "[:.]"}}, "required": ["type"]}
        layer = {"title": "layer", "anyOf": [schema["items"], own]}
        schema["items"] = {"anyOf": [layer, {"type": "array", "items": layer}]}
        return schema
