"""Types of the options of layers, with their other spellings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steppe.specs._base import NonNegative

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
    """The usual spelling of a word."""
    return OTHER_SPELLINGS.get(word, word) if isinstance(word, str) else word


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
    """The path itself if it can name a flax module."""
    module, _, name = path.partition(":")
    if not name or not all(word.isidentifier() for word in f"{module}.{name}".split(".")):
        raise ValueError('it must be the path of a flax module, such as "my_layers:MyLayer"')
    return path


ActivationWord = Annotated[Activation, BeforeValidator(usual_spelling)]
PoolingWord = Annotated[Pooling, BeforeValidator(usual_spelling)]
PaddingWord = Annotated[Padding, BeforeValidator(usual_spelling)]
OneOrTwo = Annotated[int | tuple[int, int], BeforeValidator(one_or_two)]
L2 = Annotated[NonNegative, Field(description="The loss grows by this times half the sum of the squared weights.")]
L1 = Annotated[NonNegative, Field(description="The loss grows by this times the sum of the weights' sizes.")]


def named_by_path(data: Any) -> Any:
    """A layer of the user's own, `{"type": "my_layers:MyLayer", "size": 8}`, as a custom layer with arguments."""
    if not isinstance(data, dict) or not isinstance(path := data.get("type"), str) or not (":" in path or "." in path):
        return data
    module = path if ":" in path else ":".join(path.rsplit(".", 1))
    return {"type": "custom", "module": module, "arguments": {key: data[key] for key in data if key != "type"}}
