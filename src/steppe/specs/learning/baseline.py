"""Separate value networks: `{"type": "mlp", "sizes": [64, 64]}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steppe.specs._base import Count, Spec
from steppe.specs.learning.network import Conv2d, Dense, Flatten, Layer, NetworkSpec

Sizes = Annotated[list[Count], Field(min_length=1)]


class MLPBaseline(Spec):
    """Dense layers."""

    type: Literal["mlp"]
    sizes: Sizes
    """The outputs of each layer."""

    def layers(self) -> NetworkSpec:
        """The layers as a network."""
        return NetworkSpec([Dense(type="dense", size=size, activation="relu") for size in self.sizes])


class CNNBaseline(Spec):
    """Convolutions over an image, then dense layers."""

    type: Literal["cnn"]
    conv_sizes: Sizes
    """The filters of each convolution: windows of 5 in the first and of 3 in the others, moving by 1."""
    dense_sizes: list[Count] = Field(default_factory=list)
    """The outputs of each dense layer after them."""

    def layers(self) -> NetworkSpec:
        """The layers as a network."""
        windows = [5, *[3] * (len(self.conv_sizes) - 1)]
        convolutions: list[Layer] = [
            Conv2d(type="conv2d", size=size, window=window, stride=1)
            for size, window in zip(self.conv_sizes, windows, strict=True)
        ]
        dense: list[Layer] = [Dense(type="dense", size=size, activation="relu") for size in self.dense_sizes]
        return NetworkSpec([*convolutions, Flatten(type="flatten"), *dense])


class NetworkBaseline(Spec):
    """Layers given by the user."""

    type: Literal["network", "custom"]
    network: NetworkSpec
    """The layers."""

    def layers(self) -> NetworkSpec:
        """The layers as a network."""
        return self.network


class NoBaseline(Spec):
    """No value network: advantages are the sums of the rewards until the end of the rollout."""

    type: Literal["none"] = "none"

    def layers(self) -> NetworkSpec:
        """Not called: there are no layers."""
        raise AssertionError("no value network")


def _one_state(baselines: Any) -> Any:
    if isinstance(baselines, dict) and len(baselines) > 1:
        raise ValueError(_ONE_STATE)
    return baselines


_ONE_STATE = (
    "an environment is observed as one state (Dict and Tuple observations become one vector), so it has one baseline; "
    'a {"type": "network"} with an input layer for each part can treat them apart'
)


class AggregatedBaseline(Spec):
    """One baseline for each state; an environment here has one state, made up of all its parts."""

    type: Literal["aggregated"]
    baselines: Annotated[dict[str, BaselineSpec], Field(min_length=1), BeforeValidator(_one_state)]
    """The baseline of the one state."""

    def layers(self) -> NetworkSpec:
        """The layers as a network."""
        (baseline,) = self.baselines.values()
        return baseline.layers()


def _understood(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


BaselineSpec = Annotated[
    Annotated[
        MLPBaseline | CNNBaseline | NetworkBaseline | AggregatedBaseline | NoBaseline,
        Field(discriminator="type", title="baseline"),
    ],
    BeforeValidator(_understood),
]
AggregatedBaseline.model_rebuild()
