"""The estimated value of every action, as a mean or as quantiles of the return.

The choices of a MultiDiscrete space are valued independently (action branching, Tavakoli et al. 2018,
arXiv:1711.08946).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.networks import Network, apply_head, head
from steppe.specs.learning.exploration import EpsilonAnneal
from steppe.specs.spaces import Discrete, MultiDiscrete

SIGMA = 0.5
"""The initial sigma of noisy parameters, times the root of the number of inputs (Fortunato et al. 2018)."""


class QNetwork:
    """Layers, then one output for each option of each choice and each quantile: values [B, options, quantiles]."""

    def __init__(
        self, network: Network, action: Discrete | MultiDiscrete, dueling: bool, quantiles: int, noisy: bool
    ) -> None:
        self.network = network
        self.dueling, self.quantiles, self.noisy = dueling, quantiles, noisy
        choices = (action.n,) if isinstance(action, Discrete) else action.nvec
        self.options = sum(choices)
        ends = np.cumsum(choices).tolist()
        self.slices = [slice(end - size, end) for end, size in zip(ends, choices, strict=True)]
        self.is_single = isinstance(action, Discrete)

    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Draws {"torso": ..., "head": ...}."""
        features, quantiles = self.network.features, self.quantiles
        output: dict[str, Any] = self._head(rng, features, self.options * quantiles)
        if self.dueling:
            output = {"advantage": output, "value": self._head(rng, features, quantiles)}
        return {"torso": self.network.init(rng), "head": output}

    def values(self, params: dict[str, Any], observations: Array, key: Array | None = None) -> Array:
        """[B, ...] -> [B, options, quantiles]; the key drives dropout."""
        features = self.network.apply(params["torso"], observations, key)
        if not self.dueling:
            return self._by_option(apply_head(params["head"], features))
        advantages = self._by_option(apply_head(params["head"]["advantage"], features))
        centred = [each - each.mean(-2, keepdims=True) for each in self.split(advantages)]
        return apply_head(params["head"]["value"], features)[..., None, :] + jnp.concatenate(centred, -2)

    def split(self, values: Array) -> list[Array]:
        """[B, options, quantiles] -> one array for each choice."""
        return [values] if self.is_single else [values[..., part, :] for part in self.slices]

    def chosen(self, values: Array, actions: Array) -> Array:
        """The values of the actions [B] or [B, choices] -> [B, choices, quantiles]."""
        columns = [actions] if self.is_single else [actions[..., index] for index in range(len(self.slices))]
        # A comparison with every option differentiates faster than a lookup.
        return jnp.stack(
            [
                jnp.where((column[..., None] == jnp.arange(each.shape[-2]))[..., None], each, 0.0).sum(-2)
                for each, column in zip(self.split(values), columns, strict=True)
            ],
            axis=-2,
        )

    def best(self, values: Array) -> Array:
        """The best action by mean value: [B], or [B, choices]."""
        columns = [each.mean(-1).argmax(-1) for each in self.split(values)]
        return columns[0] if self.is_single else jnp.stack(columns, -1)

    def perturbed(self, params: dict[str, Any], key: Array) -> dict[str, Any]:
        """The parameters with factorised noise in noisy heads (arXiv:1706.10295), unchanged without such heads."""
        if not self.noisy:
            return params
        heads = params["head"] if self.dueling else {"": params["head"]}
        noisy = {
            name: _with_noise(each, jax.random.fold_in(key, index)) for index, (name, each) in enumerate(heads.items())
        }
        return params | {"head": noisy if self.dueling else noisy[""]}

    def policy_tensors(self, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors for acting, without noise; the mean over the quantiles of a linear layer is a linear layer."""
        tensors = {name: tensor for name, tensor in named.items() if not name.endswith("_sigma")}
        if self.quantiles == 1:
            return tensors
        for name, tensor in tensors.items():
            if name.startswith("head/"):
                tensors[name] = tensor.reshape(*tensor.shape[:-1], -1, self.quantiles).mean(-1)
        return tensors

    def _head(self, rng: np.random.Generator | None, features: int, outputs: int) -> dict[str, np.ndarray]:
        params = head(rng, features, outputs, scale=1.0)
        if not self.noisy:
            return params
        spread = np.float32(SIGMA / np.sqrt(features))
        return params | {
            "kernel_sigma": np.full((features, outputs), spread, np.float32),
            "bias_sigma": np.full(outputs, spread, np.float32),
        }

    def _by_option(self, outputs: Array) -> Array:
        return outputs.reshape(*outputs.shape[:-1], self.options, self.quantiles)


def anneals_to_default(settings: Any) -> bool:
    """Whether epsilon falls linearly to the final value of the agent's defaults."""
    exploration, default = settings.exploration, type(settings).model_fields["exploration"].default
    if not isinstance(exploration, EpsilonAnneal):
        return False
    # Files with all defaults and overrides of other settings contain the agent's default too.
    usual = default.final_epsilon if isinstance(default, EpsilonAnneal) else None
    return "final_epsilon" not in exploration.model_fields_set or exploration.final_epsilon == usual


def _with_noise(params: dict[str, Array], key: Array) -> dict[str, Array]:
    rows, columns = params["kernel"].shape
    drawn = jax.random.normal(key, (rows + columns,))
    shaped = jnp.sign(drawn) * jnp.sqrt(jnp.abs(drawn))
    into, out_of = shaped[:rows], shaped[rows:]
    return params | {
        "kernel": params["kernel"] + params["kernel_sigma"] * into[:, None] * out_of,
        "bias": params["bias"] + params["bias_sigma"] * out_of,
    }
