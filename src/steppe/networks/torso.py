"""Networks in JAX from lists of layers: pure functions of plain nested dictionaries of parameters.

The parameters have flax.linen's names and shapes (recurrent layers: the gates side by side), and the tests compare
every layer with flax's. The layers are plain JAX, since flax takes 0.2 s to import and traces eight times slower, which
would slow the start of every run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from steppe.errors import SpecError
from steppe.networks import initializers
from steppe.networks.convolution import FoldedImages, fold_images, folding_pays
from steppe.networks.layers import Params, apply_layer, drop
from steppe.networks.products import product
from steppe.policies import cells
from steppe.policies.encoding import Encoding
from steppe.policies.layers import LayerPlan, NetworkPlan, join, pair, plan
from steppe.specs.learning.network import RECURRENT, Layer, NetworkSpec
from steppe.specs.spaces import Space

State = dict[str, Array]
"""The states of recurrent layers: {"1_lstm/hidden": [..., size], ...}; {} without such layers."""
RecurrentStep = Callable[[LayerPlan, dict[str, Array], Array], Array]
Support = Literal["recurrent", "regularization"]

_ONE_BATCH_AXIS = {"conv1d", "conv2d", "pool2d", "custom"}


class Network:
    """The layers between the observation and the agent's heads; hashable, holds no parameters.

    `supports` has the abilities of the agent: "recurrent" if it carries the state and learns from sequences,
    "regularization" if it adds `penalty` to its loss. A layer that needs another ability is a SpecError.
    """

    def __init__(
        self,
        layers: NetworkSpec | Sequence[Layer],
        observation: Space,
        kernel_init: Literal["orthogonal", "lecun"] = "orthogonal",
        supports: Collection[Support] = (),
    ) -> None:
        self.plan: NetworkPlan = plan(layers, observation)
        self.kernel_init = kernel_init
        types = {step.layer.type for step in self.plan.steps}
        self.has_dropout = any(_drops(step.layer) for step in self.plan.steps)
        self.is_recurrent = bool(self.plan.states)
        self._needs_one_batch_axis = bool(types & _ONE_BATCH_AXIS)
        # A first convolution takes bytes unchanged.
        self._takes_bytes = self.plan.encoding if self.plan.steps[0].layer.type in ("conv1d", "conv2d") else None
        sources = (source for step in self.plan.steps for source in step.sources)
        self._reads_observation_again = any(isinstance(source, Encoding) for source in sources)
        self._hash = hash((self.plan, kernel_init))
        self._check(supports)

    @property
    def features(self) -> int:
        """The length of the output vector."""
        return self.plan.features

    @property
    def observation(self) -> Space:
        """The space of the raw observations."""
        return self.plan.observation

    @property
    def layers(self) -> NetworkSpec:
        """The layers as a spec, for a policy's description."""
        return NetworkSpec([step.layer for step in self.plan.steps])

    def init(self, rng: np.random.Generator | None) -> initializers.HostParams:
        """Initial parameters: {"0_dense": {"kernel", "bias"}, ...}; layers without parameters are left out."""
        return initializers.layers(rng, self.plan.steps, self.kernel_init)

    def prepared(self, observations: Array) -> Array | FoldedImages:
        """Raw observations [B, *space.shape] in the form that `apply` reads fastest.

        Images of bytes are folded for the first convolution, which saves work if the network is applied to the same
        observations many times. Other observations are returned unchanged.
        """
        if self._takes_bytes is None or self._reads_observation_again or observations.dtype != np.uint8:
            return observations
        step = self.plan.steps[0]
        layer: Any = step.layer
        window = dict(step.parameters)["kernel"][:-2]
        strides = pair(layer.stride, len(window))
        if not folding_pays(window, strides):
            return observations
        return fold_images(self._takes_bytes(observations, jnp, keeps_bytes=True), window, strides, layer.padding)

    def apply(self, params: Params, observations: Any, dropout_key: Array | None = None) -> Array:
        """Features [..., F] of raw observations [..., *space.shape], or [B, F] of `prepared` ones.

        Dropout is active only with a key.
        """
        if self.is_recurrent:
            raise ValueError("a recurrent network needs its state: call advance or unroll")
        return self._run(params, observations, dropout_key, _no_recurrence)

    def initial_state(self, lead: tuple[int, ...] = ()) -> State:
        """The state at the beginning of an episode: zeros [*lead, size]; {} for a feed-forward network."""
        return {name: jnp.zeros((*lead, *shape)) for name, shape in self.plan.states}

    def advance(
        self, params: Params, observations: Array, state: State, dropout_key: Array | None = None
    ) -> tuple[Array, State]:
        """One timestep: (features [N, F], next state) for observations [N, ...] and `state` [N, size].

        The caller resets the state in the rows whose observation begins an episode.
        """
        after = dict(state)

        def recurrent_step(step: LayerPlan, params: dict[str, Array], x: Array) -> Array:
            before = tuple(state[name] for name, _ in step.states)
            later = cells.advance(step.layer.type, params, cells.project(params, x), before, jnp)
            after.update(_named(step, later))
            return later[0]

        return self._run(params, observations, dropout_key, recurrent_step), after

    def unroll(
        self, params: Params, observations: Array, state: State, resets: Array, dropout_key: Array | None = None
    ) -> tuple[Array, State]:
        """A sequence: (features [T, N, F], last state) for observations [T, N, ...] and `state` [N, size].

        `resets` [T, N] marks the first observations of episodes, before which the state is zeroed.
        """
        after = dict(state)

        def recurrent_step(step: LayerPlan, params: dict[str, Array], x: Array) -> Array:
            before = tuple(state[name] for name, _ in step.states)
            hidden, last = _unroll_cells(step.layer.type, params, x, before, resets)
            after.update(_named(step, last))
            return hidden

        return self._run(params, observations, dropout_key, recurrent_step), after

    def penalty(self, params: Params) -> Array | float:
        """The l1_regularization and l2_regularization of the layers, part of a loss: a scalar, 0.0 without any."""
        total: Any = 0.0
        for step in self.plan.steps:
            for weight, measure in _penalties(step.layer):
                total = total + weight * sum(measure(leaf) for leaf in params[step.name].values())
        return total

    def _run(
        self, params: Params, observations: Any, dropout_key: Array | None, recurrent_step: RecurrentStep
    ) -> Array:
        is_folded = isinstance(observations, FoldedImages)
        if is_folded:
            lead = observations.blocks.shape[:1]
        else:
            lead = jnp.shape(observations)[: jnp.ndim(observations) - len(self.observation.shape)]

        def encode(encoding: Encoding) -> Any:
            if is_folded:
                return observations
            x = encoding(observations, jnp, keeps_bytes=encoding is self._takes_bytes)
            if self._needs_one_batch_axis and len(lead) != 1:
                x = x.reshape((prod(lead), *encoding.shape))
            return x

        def apply(step: LayerPlan, x: Any) -> Array:
            own = params.get(step.name, {})
            if step.layer.type not in RECURRENT:
                return apply_layer(step, own, x, dropout_key)
            features = recurrent_step(step, own, x.reshape((*lead, prod(step.input))))
            rate = getattr(step.layer, "dropout", None)
            features = drop(features, rate, dropout_key, step) if rate else features
            return features.reshape((*x.shape[: x.ndim - len(step.input)], *step.output))

        x = self.plan.run(encode, partial(join, xp=jnp), apply)
        return x if x.shape == (*lead, self.features) else x.reshape((*lead, self.features))

    def _check(self, supports: Collection[Support]) -> None:
        for step in self.plan.steps:
            name = f"layer {step.name.replace('_', ' (', 1)}) of the network"
            if step.states and "recurrent" not in supports:
                raise SpecError(
                    f"{name} keeps a state from timestep to timestep, which this agent does not carry; use a dense "
                    "layer, or an agent that learns from sequences, such as ppo"
                )
            if any(weight for weight, _ in _penalties(step.layer)) and "regularization" not in supports:
                raise SpecError(
                    f"{name} has l1_regularization or l2_regularization, which this agent does not add to its loss; "
                    "leave it out"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and (self.plan, self.kernel_init) == (other.plan, other.kernel_init)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Network({' -> '.join(step.name for step in self.plan.steps)}, features={self.features})"


def apply_head(params: dict[str, Array], features: Array) -> Array:
    """Outputs [..., outputs] of features [..., F]."""
    return product(features, params["kernel"]) + params["bias"]


def _unroll_cells(
    kind: str, params: dict[str, Array], x: Array, state: cells.State, resets: Array
) -> tuple[Array, cells.State]:
    """(features [T, N, H], last state) of a recurrent layer for inputs [T, N, F] and `state`, [N, H] each.

    `resets` [T, N] marks the first timesteps of episodes, before which the state is zeroed.
    """
    # All inputs are multiplied by their kernel in one large product; the loop has only the small recurrent one.
    projected = cells.project(params, x)

    def step(state: cells.State, at: tuple[Array, Array]) -> tuple[cells.State, Array]:
        projected, reset = at
        state = tuple(jnp.where(reset[:, None], 0.0, each) for each in state)
        state = cells.advance(kind, params, projected, state, jnp)
        return state, state[0]

    last, hidden = lax.scan(step, state, (projected, resets))
    return hidden, last


def _no_recurrence(step: LayerPlan, params: dict[str, Array], x: Array) -> Array:
    raise AssertionError(step.name)


def _named(step: LayerPlan, state: cells.State) -> State:
    return {name: each for (name, _), each in zip(step.states, state, strict=True)}


def _drops(layer: Layer) -> bool:
    # A custom module may contain a dropout layer.
    return layer.type in ("dropout", "custom") or bool(getattr(layer, "dropout", None))


def _penalties(layer: Layer) -> list[tuple[float, Callable[[Array], Array]]]:
    """(weight, measure of one parameter) of each regularization of a layer."""
    measures: dict[str, Callable[[Array], Array]] = {
        "l2_regularization": lambda leaf: 0.5 * jnp.sum(jnp.square(leaf)),
        "l1_regularization": lambda leaf: jnp.sum(jnp.abs(leaf)),
    }
    return [(weight, measures[name]) for name in measures if (weight := getattr(layer, name, 0.0))]
