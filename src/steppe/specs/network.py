"""Networks as lists of layers, in TensorForce's words: `[{"type": "dense", "size": 64, "activation": "tanh"}, ...]`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, RootModel, model_validator

from steppe.errors import SpecError
from steppe.specs._base import Count, Flag, NonNegative, Number, Spec, Unit
from steppe.specs.validation import validate

Activation = Literal[
    "relu",
    "elu",
    "selu",
    "sigmoid",
    "swish",
    "leaky_relu",
    "crelu",
    "softplus",
    "softsign",
    "softmax",
    "tanh",
    "gelu",
    "none",
]
Pooling = Literal["max", "average"]
Padding = Literal["SAME", "VALID"]
Aggregation = Literal["concat", "sum", "product", "max", "mean"]

_OTHER_SPELLINGS = {"lrelu": "leaky_relu", "mean": "average", "same": "SAME", "valid": "VALID"}


def _usual_spelling(word: Any) -> Any:
    return _OTHER_SPELLINGS.get(word, word) if isinstance(word, str) else word


def _activation(word: Any) -> Any:
    if isinstance(word, dict) and "name" in word:
        if len(word) > 1:
            raise ValueError('write "none" here and a "nonlinearity" layer after this one, which has these settings')
        word = word["name"]
    return _usual_spelling(word)


def _one_or_two(value: Any) -> Any:
    """One whole number for both axes of an image, or one for each."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    numbers = value if is_pair else [value]
    if not all(type(each) in (int, float) and float(each).is_integer() and each >= 1 for each in numbers):
        raise ValueError("it must be a whole number of at least 1, or two of them: [height, width]")
    first, last = int(numbers[0]), int(numbers[-1])
    return first if first == last else (first, last)


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _checked_path(path: str) -> str:
    module, _, name = path.partition(":")
    if not name or not all(word.isidentifier() for word in f"{module}.{name}".split(".")):
        raise ValueError('it must be the path of a flax module, such as "my_layers:MyLayer"')
    return path


_Activation = Annotated[Activation, BeforeValidator(_activation)]
_Pooling = Annotated[Pooling, BeforeValidator(_usual_spelling)]
_Padding = Annotated[Padding, BeforeValidator(_usual_spelling)]
_OneOrTwo = Annotated[int | tuple[int, int], BeforeValidator(_one_or_two)]
_L2 = Annotated[NonNegative, Field(description="The loss grows by this times half the sum of the squared weights.")]
_L1 = Annotated[NonNegative, Field(description="The loss grows by this times the sum of the weights' sizes.")]


class Dense(Spec):
    """A fully connected layer."""

    type: Literal["dense"]
    size: Count | None = None
    """How many outputs; required, except with skip, which keeps the size of its inputs."""
    activation: _Activation = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""
    skip: Flag = False
    """Whether it is a residual block: two layers of its inputs' size, and the inputs are added before the last
    nonlinearity."""
    l2_regularization: _L2 = 0.0
    l1_regularization: _L1 = 0.0

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
    """How many outputs."""
    bias: Flag = True
    """Whether a bias is added."""
    l2_regularization: _L2 = 0.0
    l1_regularization: _L1 = 0.0


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
    l2_regularization: _L2 = 0.0
    l1_regularization: _L1 = 0.0


class Conv2d(Spec):
    """A convolution over an image: height x width x channels."""

    type: Literal["conv2d"]
    size: Count
    """How many filters."""
    window: _OneOrTwo = 3
    """The filter's height and width."""
    stride: _OneOrTwo = 1
    """How far it moves each time."""
    padding: _Padding = "SAME"
    """SAME pads with zeros, VALID does not."""
    activation: _Activation = "relu"
    """The nonlinearity after it."""
    bias: Flag = True
    """Whether a bias is added."""
    l2_regularization: _L2 = 0.0
    l1_regularization: _L1 = 0.0


class Pool2d(Spec):
    """The maximum or the mean of each window of an image."""

    type: Literal["pool2d"]
    pooling_type: _Pooling = "max"
    """What is taken of each window."""
    window: _OneOrTwo = 2
    """The window's height and width."""
    stride: _OneOrTwo = 2
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
    alpha: Number | None = None
    """The slope of leaky_relu for negative inputs; null: 0.01."""
    beta: Number | Literal["learn"] = 1.0
    """What inputs are multiplied by first; "learn" learns it, from 1 on."""
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
    """How many numbers there are: observations lie in 0 .. indices - 1."""
    size: Count
    """The length of each vector."""
    l2_regularization: _L2 = 0.0
    l1_regularization: _L1 = 0.0


class LayerNorm(Spec):
    """Shifts and scales each sample's features to mean 0 and variance 1, then by learned factors."""

    type: Literal["layer_norm"]


class Lstm(Spec):
    """Long short-term memory: its state goes from timestep to timestep and begins each episode at zero."""

    type: Literal["lstm"]
    size: Count
    """How many features it remembers and puts out."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class InternalLstm(Spec):
    """The same as lstm."""

    type: Literal["internal_lstm"]
    size: Count
    """How many features it remembers and puts out."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class Gru(Spec):
    """A gated recurrent unit: like lstm, with a smaller state and fewer weights."""

    type: Literal["gru"]
    size: Count
    """How many features it remembers and puts out."""
    dropout: Unit | None = None
    """The share of its outputs that is dropped while learning."""


class Dueling(Spec):
    """As the last layer of a network for dqn: learns the value of a state and its actions' advantages apart."""

    type: Literal["dueling"]
    size: Count | None = None
    """The number of actions; it may be left out."""


class Input(Spec):
    """Begins a branch with named parts of the observation, or with what outputs before it are named."""

    type: Literal["input"]
    names: Annotated[list[str], BeforeValidator(_names), Field(min_length=1)] = Field(
        validation_alias=AliasChoices("names", "inputs")
    )
    """What is read: parts of the observation, names of outputs, or "*" for what the layer before put out."""
    aggregation_type: Aggregation = "concat"
    """How several become one."""
    axis: int = -1
    """Along which axis they are joined by concat: -1 is the last, 1 the first after the batch."""

    def __hash__(self) -> int:
        return hash((tuple(self.names), self.aggregation_type, self.axis))


class Output(Spec):
    """Names what the layer before put out, so that an input can read it."""

    type: Literal["output"]
    name: Annotated[str, Field(min_length=1)] = Field(validation_alias=AliasChoices("name", "output"))
    """The name."""


class Custom(Spec):
    """Your own flax.linen module, also written `{"type": "my_layers:MyLayer", ...}` with its arguments in place."""

    type: Literal["custom"]
    module: Annotated[str, AfterValidator(_checked_path)]
    """Where it is: "module:Class"."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What its constructor is given."""

    def __hash__(self) -> int:
        return hash((self.module, json.dumps(self.arguments, sort_keys=True, default=str)))


_OLD_OPTIONS = {
    "scope": "TensorFlow's names do not exist here",
    "summary_labels": "metrics are chosen for a whole experiment",
    "weights": "first weights are drawn orthogonally; to begin from others, resume from a checkpoint",
    "return_final_state": "a recurrent layer puts out its features at each timestep",
}


_NOT_HERE = {
    "batch_normalization": 'a policy also acts on one observation alone; use "layer_norm", which sees each by itself',
    "global_pooling": 'use "pool2d" with a window as large as the image, or "flatten"',
}


def _in_present_words(data: Any) -> Any:
    """A layer of one's own by its path alone; what cannot be honoured is refused with the reason."""
    if not isinstance(data, dict) or not isinstance(kind := data.get("type"), str):
        return data
    if kind in _NOT_HERE or (kind == "tf_layer" and data.get("layer") == "batch_normalization"):
        raise ValueError(f'there is no layer "{data.get("layer", kind)}"; {_NOT_HERE[data.get("layer", kind)]}')
    if kind == "tf_layer":
        raise ValueError(
            "layers of TensorFlow do not exist here; use one of Steppe's, or write your own as a flax module "
            'and name it as {"type": "my_layers:MyLayer"}'
        )
    if ":" in kind or "." in kind:
        path = kind if ":" in kind else ":".join(kind.rsplit(".", 1))
        return {"type": "custom", "module": path, "arguments": {key: data[key] for key in data if key != "type"}}
    if kind == "dueling" and (more := sorted(data.keys() - {"type", "size"})):
        raise ValueError(f'the agent makes a dueling layer from its own output layers, so it has no "{more[0]}"')
    if old := next((option for option in _OLD_OPTIONS if kind != "custom" and option in data), None):
        raise ValueError(f'"{old}" cannot be honoured: {_OLD_OPTIONS[old]}; leave it out')
    return data


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
    BeforeValidator(_in_present_words),
]

RECURRENT = ("lstm", "internal_lstm", "gru")
"""The layers that keep a state from timestep to timestep."""


class _Branch(RootModel[list[Layer]]):
    """One of several lists of layers."""


def _as_one_list(data: Any) -> Any:
    """A list of branches as one list of layers, since each branch begins with an input layer anyway."""
    data = _layers_of(data)
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


def _layers_of(data: Any) -> Any:
    """TensorForce could wrap the list: {"type": "layered", "layers": [...]}."""
    if isinstance(data, str):
        raise ValueError("it must be the list of layers itself; only the experiment's own network can be a file's name")
    if not isinstance(data, dict) or data.get("type", "layered") != "layered":
        return data
    names = {"layers", "layers_spec"} & data.keys()
    return data[names.pop()] if len(names) == 1 and len(data.keys() - {"type"}) == 1 else data


class NetworkSpec(RootModel[list[Layer]]):
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
        """Whether the last layer says that values and advantages are learned apart."""
        return self.root[-1].type == "dueling"

    def without_dueling(self) -> NetworkSpec:
        """The layers before a dueling last one, which the agent itself makes."""
        if not self.is_dueling:
            return self
        return NetworkSpec(self.root[:-1] or [Flatten(type="flatten")])

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """The schema also allows branches, and layers of one's own by their path alone."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        own = {"type": "object", "properties": {"type": {"type": "string", "pattern": "[:.]"}}, "required": ["type"]}
        layer = {"title": "layer", "anyOf": [schema["items"], own]}
        schema["items"] = {"anyOf": [layer, {"type": "array", "items": layer}]}
        return schema
