"""The number of cores that share a large update, computed from the spec, since JAX must know it before it starts."""

from __future__ import annotations

from typing import Any

from steppe.agents import agent_class
from steppe.envs.cores import available_cores
from steppe.runners.setup import num_envs_of
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.defaults_by_kind import kind_of

WORK_PER_DEVICE = 2**26
"""The multiplications of one convolution over a minibatch that are worth a device: those of the Nature DQN network over
37 pictures. Dense layers stay on one device: two that share 256 rows of 256 x 256 take as long as one."""
POSITIONS = 49
"""The assumed number of positions of a convolution, that of the last one of the Nature DQN network."""
WORK_PER_THREAD = 2**23
"""The multiplications of one dense layer over a batch that are worth a thread: those of 256 x 256 weights over 128
rows."""


def devices_for(spec: ExperimentSpec, cores: int | None = None) -> int:
    """The number of host devices that share the environments of a host run, and their minibatches."""
    cores = available_cores() if cores is None else cores
    most = min(cores, _work_of_minibatch(spec) // WORK_PER_DEVICE)
    devices = 1
    while devices * 2 <= most and _is_even(spec, devices * 2):
        devices *= 2
    return devices


def threads_for(spec: ExperimentSpec, cores: int | None = None) -> int:
    """The number of XLA's threads that share the products of an update from a replay memory.

    It is one if the network has convolutions, which take longer in two threads than in one.
    """
    cores = available_cores() if cores is None else cores
    settings, layers = _settings(spec), _layers(spec)
    if _filter_weights(layers):
        return 1
    return max(1, min(cores, settings.batch_size * _dense_weights(layers) // WORK_PER_THREAD))


def _is_even(spec: ExperimentSpec, devices: int) -> bool:
    """Whether environments and minibatches can be divided evenly among the devices."""
    settings, num_envs = _settings(spec), num_envs_of(spec)
    is_recurrent = spec.network is not None and spec.network.is_recurrent
    if is_recurrent or settings.counts_episodes or num_envs % devices:
        return False
    return _timesteps(spec) // devices % settings.minibatch_count == 0


def _work_of_minibatch(spec: ExperimentSpec) -> int:
    """Multiplications of the largest convolution over one minibatch, 0 without any."""
    rows = _settings(spec).minibatch_size(_timesteps(spec))
    return rows * POSITIONS * _filter_weights(_layers(spec))


def _timesteps(spec: ExperimentSpec) -> int:
    """The timesteps of all environments in one update."""
    num_envs = num_envs_of(spec)
    timesteps: int = _settings(spec).horizon_for(num_envs) * num_envs
    return timesteps


def _settings(spec: ExperimentSpec) -> Any:
    return spec.agent.settings_as(agent_class(spec.agent).Settings)


def _layers(spec: ExperimentSpec) -> list[Any]:
    """The layers of the spec's network, or the agent's default for the kind of observations guessed from the id."""
    from steppe.specs.spaces import Box

    if spec.network is not None:
        return list(spec.network.root)
    pictures = Box((84, 84, 4), (0.0,), (255.0,), "uint8")
    numbers = Box((1,), (-1.0,), (1.0,), "float32")
    seen = pictures if kind_of(spec.environment) == "pictures" else numbers
    return list(agent_class(spec.agent).default_network(seen).root)


def _filter_weights(layers: list[Any]) -> int:
    """Weights of the largest convolution except the first, whose inputs are not in the spec."""
    most, inputs = 0, 0
    for layer in layers:
        if layer.type in ("conv1d", "conv2d"):
            window = layer.window if isinstance(layer.window, list | tuple) else [layer.window] * int(layer.type[4])
            weights = inputs * layer.size
            for length in window:
                weights *= length
            most, inputs = max(most, weights), layer.size
        elif layer.type in ("dense", "linear", "input", "flatten"):
            inputs = 0
    return most


def _dense_weights(layers: list[Any]) -> int:
    """Weights of the largest dense layer whose inputs are known from the spec."""
    most, inputs = 0, 0
    for layer in layers:
        if layer.type in ("dense", "linear"):
            most, inputs = max(most, inputs * layer.size), layer.size
        elif layer.type in ("input", "flatten"):
            inputs = 0
    return most
