"""Deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236) and its family, as settings:

double (arXiv:1509.06461), dueling (arXiv:1511.06581), n-step returns, prioritised replay (arXiv:1511.05952), quantiles
(arXiv:1710.10044) and noisy networks (arXiv:1706.10295); all of them together are Rainbow (arXiv:1710.02298).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from pydantic import model_validator

from steppe.agents._base import (
    ActorParams,
    AgentContext,
    Internals,
    Metrics,
    TrainState,
    Transitions,
    normalizer_tensors,
)
from steppe.agents.core.off_policy import OffPolicy, OffPolicySettings
from steppe.agents.core.q_network import QNetwork, anneals_to_default
from steppe.errors import SpecError, UserError
from steppe.networks import Network
from steppe.specs._base import Count, Flag, Positive, Unit
from steppe.specs.learning.exploration import EpsilonAnneal, RandomActions
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Discrete, MultiDiscrete, Space


class DQNSettings(OffPolicySettings):
    """Settings of `dqn`."""

    batch_size: Count = 128
    """How many transitions each update learns from; also update_mode.batch_size."""
    update_frequency: Count = 2
    """How many timesteps each environment takes between two updates; also update_mode.frequency."""
    learning_rate: Positive = 1e-3
    """The optimiser's step size; may also be written inside `optimizer`."""
    max_gradient_norm: Positive | None = 10.0
    """Longer gradients are shortened to this length; null leaves them as they are."""
    double: Flag = True
    """Whether the online network chooses the next action that the target network values; also double_q_model."""
    dueling: Flag = False
    """Whether the value of a state and the advantages of its actions are learned separately and added."""
    n_step: Count = 3
    """How many rewards are summed before the target network's estimate."""
    quantiles: Count = 1
    """How many quantiles of the return are learned for each action; 1 learns its mean."""
    noisy: Flag = False
    """Whether exploration comes from learned noise in the last layer instead of random actions."""
    huber: Flag | Positive = False
    """Whether large errors count linearly instead of squared; a number says from which error on. True by default if
    quantiles are learned. Also huber_loss."""
    target_sync_frequency: Count = 500
    """How many updates pass between two moves of the target network."""
    target_update_weight: Unit = 1.0
    """How far the target network moves each time: 1 is a copy."""
    exploration: RandomActions = EpsilonAnneal(final_epsilon=0.02)
    """The share of random actions over time; also spelled actions_exploration."""

    @model_validator(mode="before")
    @classmethod
    def _noise_explores(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("noisy") is not True:
            return data
        explores = {"exploration", "actions_exploration"} & set(data)
        return data if explores else data | {"exploration": {"type": "constant"}}

    @model_validator(mode="before")
    @classmethod
    def _quantiles_take_huber(cls, data: Any) -> Any:
        """Squared errors would find expectiles instead."""
        if not isinstance(data, dict) or data.get("quantiles", 1) == 1 or {"huber", "huber_loss"} & set(data):
            return data
        return data | {"huber": True}


class DQN(OffPolicy[DQNSettings]):
    """One network's estimate of every action's value, learned from replayed transitions."""

    type = "dqn"
    kind = "q_values"
    Settings: ClassVar = DQNSettings

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The mean (Huber, squared or quantile) error over a batch."""
        values = self.online_values(params, state, batch)
        each, errors = self.td_loss(self.q.chosen(values, batch.actions), self.targets(state, batch))
        penalty = self.q.network.penalty(self.layout.split(params)["torso"])
        return (batch.weights * each).mean() + penalty, {"td_error": errors.mean(), "priorities": errors}

    def online_values(self, params: Array, state: TrainState, batch: Transitions) -> Array:
        """The estimated value of every action: [B, actions, quantiles]."""
        key = self._keys(state)[0]
        online = self.q.perturbed(self.layout.split(params), key)
        observations = self.normalized(state.observations, batch.observations)
        return self.q.values(online, observations, key if self.q.network.has_dropout else None)

    def targets(self, state: TrainState, batch: Transitions) -> Array:
        """Rewards plus the discounted values of the best next actions: [B, choices, quantiles]."""
        batch = self.normalized_batch(state, batch)
        _, next_key, target_key = self._keys(state)
        target = self.q.perturbed(self.layout.split(state.target), target_key)
        next_values = chooser = self.q.values(target, batch.next_observations)
        if self.settings.double:
            chosen_by = self.q.perturbed(self.layout.split(state.params), next_key)
            chooser = self.q.values(chosen_by, batch.next_observations)
        bootstrap = self.q.chosen(next_values, self.q.best(chooser))
        targets = batch.rewards[:, None, None] + batch.discounts[:, None, None] * bootstrap
        return jax.lax.stop_gradient(targets)

    def td_loss(self, chosen_q: Array, targets: Array) -> tuple[Array, Array]:
        """(cost, absolute error) of each transition [B], from [B, choices, quantiles] each."""
        if self.settings.quantiles == 1:
            errors = (chosen_q - targets)[..., 0]
            each = self._cost(errors)
        else:
            errors = chosen_q.mean(-1) - targets.mean(-1)
            each = quantile_loss(chosen_q, targets, self._cost)
        return each.mean(-1), jnp.abs(errors).mean(-1)

    def _keys(self, state: TrainState) -> Array:
        """The keys for the noise of the learning, the choosing and the target network."""
        return jax.random.split(jax.random.fold_in(state.key, state.updates), 3)

    def _cost(self, errors: Array) -> Array:
        """The cost of each error, linear or Huber for quantiles: squared errors would find expectiles."""
        huber = self.settings.huber
        if huber is not False:
            return optax.huber_loss(errors, delta=float(huber))
        return 0.5 * errors**2 if self.settings.quantiles == 1 else jnp.abs(errors)

    def __init__(self, settings: DQNSettings, context: AgentContext) -> None:
        action = discrete_choices(context, self.type)
        layers = context.network or self.default_network(context.observation)
        self.layers, is_dueling = torso_of(layers, action, self.type)
        network = Network(self.layers, context.observation, supports={"regularization"})
        self.dueling = settings.dueling or is_dueling
        if is_dueling and "dueling" in settings.model_fields_set and not settings.dueling:
            raise SpecError("agent.dueling is false, but the network ends in a dueling layer; remove one of the two")
        self.q = QNetwork(network, action, self.dueling, settings.quantiles, settings.noisy)
        super().__init__(settings, context)

    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Draws the parameters of the network."""
        return self.q.draw_params(rng)

    @property
    def perturbs_parameters(self) -> bool:
        """Whether the network is noisy."""
        return self.settings.noisy

    def actor_params(self, state: TrainState) -> ActorParams:
        """The parameters, with the noise of a noisy network."""
        if not self.settings.noisy:
            return super().actor_params(state)
        params = self.q.perturbed(self.layout.split(state.params), jax.random.fold_in(state.key, state.updates))
        return ActorParams(self.layout.joined(params), state.observations)

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The mean value of each action."""
        observations = self.normalized(actor_params.observations, observations)
        return self.q.values(self.layout.split(actor_params.params), observations).mean(-1), internals

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """A share of random actions."""
        return {"epsilon": self.settings.exploration.epsilon(timestep, xp)}

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of the online network and its normaliser."""
        named = self.layout.named(np.array(state.params))
        return self.q.policy_tensors(named) | normalizer_tensors(self, state)

    @property
    def has_default_final_epsilon(self) -> bool:
        """Whether the final epsilon is the agent's default."""
        return anneals_to_default(self.settings)

    def policy_head(self) -> dict[str, Any]:
        """Takes the action of the highest value; sampling keeps the final exploration."""
        final = float(self.settings.exploration.epsilon(2**31, np))
        return {"kind": self.kind, "dueling": self.dueling, "epsilon": final}


def quantile_loss(quantiles: Array, targets: Array, cost: Any) -> Array:
    """[..., K] quantiles and [..., J] samples -> [...]: quantile regression (arXiv:1710.10044 eq. 10)."""
    count = quantiles.shape[-1]
    levels = (jnp.arange(count) + 0.5) / count
    errors = targets[..., None, :] - quantiles[..., :, None]
    weights = jnp.abs(levels[:, None] - (errors < 0))
    return (weights * cost(errors)).mean(-1).sum(-1)


def torso_of(layers: NetworkSpec, action: Discrete | MultiDiscrete, agent: str) -> tuple[NetworkSpec, bool]:
    """(the layers without a final `dueling` layer of TensorForce's, whether there was one)."""
    if not layers.is_dueling:
        return layers, False
    size = getattr(layers.root[-1], "size", None)
    actions = action.n if isinstance(action, Discrete) else sum(action.nvec)
    if size not in (None, actions):
        raise UserError(
            f'the network ends in a dueling layer of size {size}, but agent "{agent}" has {actions} actions to value; '
            "leave out its size"
        )
    return layers.without_dueling(), True


def discrete_choices(context: AgentContext, agent: str) -> Discrete | MultiDiscrete:
    """The action space; a UserError if it has no finite number of actions."""
    if isinstance(context.action, Discrete | MultiDiscrete):
        return context.action
    raise UserError(
        f'agent "{agent}" needs discrete actions, but {context.environment or "the environment"} has '
        f'{_described(context.action)}; use "sac", "td3" or "ppo"'
    )


def _described(space: Space) -> str:
    return "continuous actions" if space.dtype.startswith("float") else "whole numbers in a box as actions"


class QRDQNSettings(DQNSettings):
    """Settings of `qr_dqn`."""

    update_frequency: Count = 4
    """How many timesteps each environment takes between two updates; also update_mode.frequency."""
    target_sync_frequency: Count = 250
    """How many updates pass between two moves of the target network."""
    huber: Flag | Positive = True
    """Whether large errors count linearly instead of absolutely; a number says from which error on. Also huber_loss."""
    quantiles: Count = 50
    """How many quantiles of the return are learned for each action; 1 learns its mean."""


class QRDQN(DQN):
    """Deep Q-learning of the whole distribution of returns, by its quantiles."""

    type = "qr_dqn"
    Settings: ClassVar = QRDQNSettings


class DDQNSettings(DQNSettings):
    """Settings of `ddqn`."""

    double: Flag = True
    """Whether the online network chooses the next action that the target network values; also double_q_model."""
    n_step: Count = 1
    """How many rewards are summed before the target network's estimate."""


class DDQN(DQN):
    """Double deep Q-learning: TensorForce's name for dqn with double."""

    type = "ddqn"
    Settings: ClassVar = DDQNSettings


class NStepDQNSettings(DQNSettings):
    """Settings of `dqn_nstep`."""

    n_step: Count = 5
    """How many rewards are summed before the target network's estimate."""


class NStepDQN(DQN):
    """Deep Q-learning from sums of several rewards: TensorForce's name for dqn with n_step."""

    type = "dqn_nstep"
    Settings: ClassVar = NStepDQNSettings
