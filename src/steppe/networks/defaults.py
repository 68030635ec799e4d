"""The default network of an agent."""

from __future__ import annotations

from steppe.policies.encoding import is_channels_first
from steppe.specs.learning.network import Conv2d, Dense, Flatten, Input, Layer, NetworkSpec, Output
from steppe.specs.spaces import Box, Space


def default_layers(observation: Space) -> NetworkSpec:
    """Dense layers for vectors; for images the convolutions of Mnih et al. 2015, smaller ones below 36 pixels.

    An observation with images among its parts gets a branch for each image and one for all other parts.
    """
    if isinstance(observation, Box):
        if observation.is_image:
            return NetworkSpec(_image_layers(observation.shape))
        images = [part for part in observation.parts if isinstance(part.space, Box) and part.space.is_image]
        if images:
            return _branches(observation, [part.name for part in images])
    return NetworkSpec([Dense(type="dense", size=64, activation="tanh") for _ in range(2)])


def _image_layers(shape: tuple[int, ...], size: int | None = None) -> list[Layer]:
    pixels = min(shape[1:] if is_channels_first(shape) else shape[:2])
    convolutions: list[Layer]
    if pixels >= 36:
        sizes = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        convolutions = [Conv2d(type="conv2d", size=n, window=w, stride=s, padding="VALID") for n, w, s in sizes]
        return [*convolutions, Flatten(type="flatten"), Dense(type="dense", size=size or 512)]
    convolutions = [Conv2d(type="conv2d", size=n, window=3, stride=s) for n, s in ((32, 1), (64, 2))]
    return [*convolutions, Flatten(type="flatten"), Dense(type="dense", size=size or 256)]


def _branches(observation: Box, images: list[str]) -> NetworkSpec:
    layers: list[Layer] = []
    read: list[str] = []
    for part in observation.parts:
        if part.name in images:
            read.append(f"{part.name}/features")
            branch = _image_layers(part.space.shape, size=256)
            layers += [Input(type="input", names=[part.name]), *branch, Output(type="output", name=read[-1])]
    read += [part.name for part in observation.parts if part.name not in images]
    return NetworkSpec([*layers, Input(type="input", names=read), Dense(type="dense", size=256)])
