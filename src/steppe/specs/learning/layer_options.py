"""What the options of a layer may be, and the other words that files use for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steppe.specs._base import NonNegative
from steppe.specs.loading.validation import shown

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

OTHER_SPELLINGS = {"lrelu": "leaky_relu", "mean": "average", "same": "SAME", "valid": "VALID"}


def usual_spelling(word: Any) -> Any:
    """The word that another spelling stands for."""
    return OTHER_SPELLINGS.get(word, word) if isinstance(word, str) else word


def named_activation(word: Any) -> Any:
    """The word in TensorForce's `{"name": word}`; null is none."""
    if word is None:
        return "none"
    if isinstance(word, dict) and "name" in word:
        if len(word) > 1:
            raise ValueError('write "none" here and a "nonlinearity" layer after this one, which has these settings')
        word = word["name"]
    return usual_spelling(word)


def one_or_two(value: Any) -> Any:
    """One whole number for both axes of an image, or one for each."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    numbers = value if is_pair else [value]
    if not all(type(each) in (int, float) and float(each).is_integer() and each >= 1 for each in numbers):
        raise ValueError("it must be a whole number of at least 1, or two of them: [height, width]")
    first, last = int(numbers[0]), int(numbers[-1])
    return first if first == last else (first, last)


def listed_names(value: Any) -> Any:
    """One name as a list of one."""
    return [value] if isinstance(value, str) else value


def checked_path(path: str) -> str:
    """The path itself when it can name a flax module."""
    module, _, name = path.partition(":")
    if not name or not all(word.isidentifier() for word in f"{module}.{name}".split(".")):
        raise ValueError('it must be the path of a flax module, such as "my_layers:MyLayer"')
    return path


ActivationWord = Annotated[Activation, BeforeValidator(named_activation)]
PoolingWord = Annotated[Pooling, BeforeValidator(usual_spelling)]
PaddingWord = Annotated[Padding, BeforeValidator(usual_spelling)]
OneOrTwo = Annotated[int | tuple[int, int], BeforeValidator(one_or_two)]
L2 = Annotated[NonNegative, Field(description="The loss grows by this times half the sum of the squared weights.")]
L1 = Annotated[NonNegative, Field(description="The loss grows by this times the sum of the weights' sizes.")]

_OLD_OPTIONS = {
    "scope": "TensorFlow's names do not exist here",
    "summary_labels": "metrics are chosen for a whole experiment",
    "weights": "first weights are drawn orthogonally; to begin from others, resume from a checkpoint",
    "return_final_state": "a recurrent layer puts out its features at each timestep",
}
_NOT_HERE = {
    "batch_normalization": (
        'a policy also acts on one observation alone; write {"type": "layer_norm"} in its place, with no other '
        "options, which sees each by itself"
    ),
    "global_pooling": 'use "pool2d" with a window as large as the image, or "flatten"',
}


LAYER_NORM_INSTEAD = (
    "batch_normalization is trained as layer_norm, which normalises each observation by itself, since a policy also "
    "acts on one alone"
)
"""What a user of an old network is told."""
_LAYER_NORM_HAS = {"center": True, "scale": True, "axis": -1}
_WITHOUT_EFFECT = ("momentum", "epsilon")
BATCH_NORMALIZATION: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "tf_layer"}, "layer": {"const": "batch_normalization"}}
    | {name: {"enum": [value, None]} for name, value in _LAYER_NORM_HAS.items()}
    | {name: {} for name in _WITHOUT_EFFECT},
    "required": ["type", "layer"],
    "additionalProperties": False,
}
"""The old layer as JSON Schema."""


def is_batch_normalization(data: Any) -> bool:
    """Whether a layer is TensorFlow's batch normalisation, as TensorForce's files name it."""
    return isinstance(data, dict) and (data.get("type"), data.get("layer")) == ("tf_layer", "batch_normalization")


def in_present_words(data: Any) -> Any:
    """A layer in today's words, and one's own by its path alone; a ValueError says why one cannot be had."""
    if not isinstance(data, dict) or not isinstance(kind := data.get("type"), str):
        return data
    if is_batch_normalization(data):
        return _as_layer_norm(data)
    if kind in _NOT_HERE:
        raise ValueError(f'there is no layer "{kind}"; {_NOT_HERE[kind]}')
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


def _as_layer_norm(data: dict[str, Any]) -> dict[str, Any]:
    """The layer that takes the place of batch normalisation; a ValueError if it cannot do what an option asks for."""
    for name, value in data.items():
        if name in ("type", "layer", *_WITHOUT_EFFECT) or value is None:
            continue
        if name not in _LAYER_NORM_HAS:
            known = ", ".join((*_LAYER_NORM_HAS, *_WITHOUT_EFFECT))
            raise ValueError(f'"{name}" of batch_normalization is not known; the options are {known}')
        if value != _LAYER_NORM_HAS[name]:
            raise ValueError(
                f'"{name}" of batch_normalization can only be {shown(_LAYER_NORM_HAS[name])}, as it is in layer_norm, '
                "which takes its place; leave it out"
            )
    return {"type": "layer_norm"}
