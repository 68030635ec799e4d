"""Value networks in TensorForce's words: `{"type": "mlp", "sizes": [64, 64]}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from steppe.specs._base import Count, Spec
from steppe.specs.network import Conv2d, Dense, Flatten, Layer, NetworkSpec

Sizes = Annotated[list[Count], Field(min_length=1)]


class MLPBaseline(Spec):
    """Dense layers."""

    type: Literal["mlp"]
    sizes: Sizes
    """The outputs of each layer."""

    def layers(self) -> NetworkSpec:
        """As a network."""
        return NetworkSpec([Dense(type="dense", size=size, activation="tanh") for size in self.sizes])


class CNNBaseline(Spec):
    """Convolutions over an image, then dense layers."""

    type: Literal["cnn"]
    conv_sizes: Sizes
    """The filters of each convolution: windows of 3, moving by 2."""
    dense_sizes: list[Count] = Field(default_factory=list)
    """The outputs of each dense layer after them."""

    def layers(self) -> NetworkSpec:
        """As a network."""
        convolutions: list[Layer] = [Conv2d(type="conv2d", size=size, window=3, stride=2) for size in self.conv_sizes]
        dense: list[Layer] = [Dense(type="dense", size=size, activation="tanh") for size in self.dense_sizes]
        return NetworkSpec([*convolutions, Flatten(type="flatten"), *dense])


class NetworkBaseline(Spec):
    """Layers of the user's own."""

    type: Literal["network", "custom"]
    network: NetworkSpec
    """The layers."""

    def layers(self) -> NetworkSpec:
        """As a network."""
        return self.network


class AggregatedBaseline(Spec):
    """One baseline for each state; here an environment has one state, which all its parts make up."""

    type: Literal["aggregated"]
    baselines: Annotated[dict[str, BaselineSpec], Field(min_length=1, max_length=1)]
    """The baseline of the one state."""

    def layers(self) -> NetworkSpec:
        """As a network."""
        (baseline,) = self.baselines.values()
        return baseline.layers()


BaselineSpec = Annotated[
    MLPBaseline | CNNBaseline | NetworkBaseline | AggregatedBaseline, Field(discriminator="type", title="baseline")
]
AggregatedBaseline.model_rebuild()
