"""Agents for continuous actions: an actor whose actions lie within +-1, and critics that estimate Q(s, a)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import model_validator

from steppe.agents._base import ActorParams, AgentContext, Internals, TrainState, normalizer_tensors
from steppe.agents.core.loss_optimizer import LossOptimizer, slot_of
from steppe.agents.core.off_policy import MemorySettings, OffPolicy, OffPolicySettings
from steppe.agents.core.optimizers import has_part, steps_of
from steppe.errors import SpecError, UserError
from steppe.networks import Network, apply_head, default_layers, head
from steppe.policies import heads
from steppe.specs._base import Natural, Positive
from steppe.specs.learning.network import Dense, Flatten, Input, Layer, NetworkSpec
from steppe.specs.learning.optimizer import Evolutionary, OptimizedStep, OptimizerSpec
from steppe.specs.spaces import Box, Part, Space

ACTION = "action"
"""The name of the action in an input layer of a critic."""


class ContinuousSettings(OffPolicySettings):
    """Settings of every agent with an actor and critics."""

    learning_starts: Natural = 1_000
    """How many timesteps are collected, with uniformly random actions, before the first update."""
    max_gradient_norm: Positive | None = None
    """Longer gradients are shortened to this length; null leaves them as they are."""
    critic_network: NetworkSpec | None = None
    """The critics' layers if they differ from the actor's; the action joins after convolutions."""
    critic_learning_rate: Positive | None = None
    """The critics' step size if it differs; may also be written inside `critic_optimizer`."""
    critic_optimizer: OptimizerSpec | None = None
    """The critics' optimiser if it differs."""
    memory: MemorySettings = MemorySettings(capacity=250_000)
    """The replay memory."""

    @model_validator(mode="after")
    def _one_optimizer(self) -> ContinuousSettings:
        if any(has_part(each, Evolutionary) for each in (self.optimizer, self.critic_optimizer)):
            raise ValueError("an evolutionary optimizer follows one loss, but actor and critics have one each")
        if has_part(self.optimizer, OptimizedStep):
            raise ValueError("optimized_step searches along one loss, but actor and critics have one each")
        if self.critic_optimizer is not None and hasattr(self.critic_optimizer, "optimizer"):
            raise ValueError(
                f'"{self.critic_optimizer.type}" wraps the step of actor and critics together: write it as optimizer'
            )
        return self


S = TypeVar("S", bound=ContinuousSettings)


class ActorAndCritics(OffPolicy[S], Generic[S]):
    """An actor and `critics` critics; parameters {"actor": {...}, "critic_0": {...}, ...}."""

    lists_optimizers = True
    critics = 1

    def __init__(self, settings: S, context: AgentContext) -> None:
        self.action_size = bounded_actions(context, self.type).size
        observation = context.observation
        self.layers = context.network or self.default_network(observation)
        self.actor_network = Network(self.layers, observation, "lecun", {"regularization"})
        critic = settings.critic_network or self.layers
        encoding, rest = _where_action_joins(critic, observation)
        self.encoder = Network(encoding, observation, "lecun", {"regularization"})
        width = self.encoder.features + self.action_size
        joined = Box((width,), (float("-inf"),), (float("inf"),), "float32")
        self.critic = Network(rest, joined, "lecun", {"regularization"})
        super().__init__(settings, context)
        layers = (*self.layers.root, *critic.root)
        if any(layer.type == "dropout" or getattr(layer, "dropout", None) for layer in layers):
            raise SpecError(f'agent "{self.type}" learns from its own estimates, which dropout blurs; leave it out')

    @classmethod
    def default_network(cls, observation: Space) -> NetworkSpec:
        """Two wide layers for vectors."""
        return dense_layers(observation)

    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Draws the parameters; a small last layer makes the first actions nearly zero."""
        outputs = heads.outputs_size(self.kind, self.context.action)
        params: dict[str, Any] = {
            "actor": {
                "torso": self.actor_network.init(rng),
                "head": head(rng, self.actor_network.features, outputs, scale=0.01),
            }
        }
        for index in range(self.critics):
            params[f"critic_{index}"] = {
                "encoder": self.encoder.init(rng),
                "torso": self.critic.init(rng),
                "head": head(rng, self.critic.features, 1, scale=1.0),
            }
        return params

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The actor's outputs."""
        observations = self.normalized(actor_params.observations, observations)
        return self.act_on(self.layout.split(actor_params.params), observations), internals

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """An epsilon of 1, for uniformly random actions, until learning starts."""
        return {"epsilon": xp.where(timestep < self.settings.learning_starts, 1.0, 0.0)}

    def act_on(self, params: dict[str, Any], observations: Array) -> Array:
        """Normalised observations [B, ...] -> the actor's outputs [B, outputs]."""
        actor = params["actor"]
        return apply_head(actor["head"], self.actor_network.apply(actor["torso"], observations))

    def values(self, params: dict[str, Any], observations: Array, actions: Array) -> list[Array]:
        """The values of actions [B, A]: a list of one [B] for each critic.

        The critics are computed as one product [critics, B, ...] per layer, which XLA's threads share better than one
        product each.
        """

        def value(critic: dict[str, Any]) -> Array:
            inputs = jnp.concatenate([self.encoder.apply(critic["encoder"], observations), actions], -1)
            return apply_head(critic["head"], self.critic.apply(critic["torso"], inputs))[..., 0]

        critics = [params[f"critic_{index}"] for index in range(self.critics)]
        if self.critics == 1:
            return [value(critics[0])]
        return list(jax.vmap(value)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)))

    def penalty(self, params: dict[str, Any]) -> Any:
        """The layers' regularisation, as a term of the loss."""
        total = self.actor_network.penalty(params["actor"]["torso"])
        for index in range(self.critics):
            critic = params[f"critic_{index}"]
            total = total + self.encoder.penalty(critic["encoder"]) + self.critic.penalty(critic["torso"])
        return total

    @property
    def first_of_critics(self) -> int:
        """The start of the critics' parameters in the vector."""
        return self.layout.start_of("critic_0")

    @property
    def optimizers(self) -> tuple[LossOptimizer, ...]:
        """One loss, whose gradient actor and critics follow with one optimiser each."""
        settings, border = self.settings, self.first_of_critics
        spec, rate = settings.optimizer, settings.learning_rate
        critic_spec = settings.critic_optimizer or spec
        critic_rate = rate if settings.critic_learning_rate is None else settings.critic_learning_rate
        steps = steps_of(spec)
        actor = slot_of(self, spec, rate, 0, border, steps, self.target_sync.delay)
        critics = slot_of(self, critic_spec, critic_rate, border, None, steps)
        return (LossOptimizer(self, spec, (actor, critics)),)

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of the actor and its normaliser, without the critics."""
        named = self.layout.named(np.asarray(state.params))
        # Copied one by one: with the critics the copy would be three times as large.
        tensors = {name.removeprefix("actor/"): t.copy() for name, t in named.items() if name.startswith("actor/")}
        return tensors | normalizer_tensors(self, state)


def bounded_actions(context: AgentContext, agent: str) -> Box:
    """The action space; a UserError if it is not a bounded box of real numbers."""
    space = context.action
    where = context.environment or "the environment"
    if not isinstance(space, Box) or not space.dtype.startswith("float"):
        raise UserError(f'agent "{agent}" needs continuous actions, but {where} has discrete ones; use "dqn" or "ppo"')
    if not space.is_bounded:
        raise UserError(f'agent "{agent}" needs actions with bounds, but those of {where} have none; use "ppo"')
    return space


def dense_layers(observation: Space) -> NetworkSpec:
    """Two wide layers for vectors; for images the usual convolutions."""
    if isinstance(observation, Box) and (observation.is_image or any(_is_image(part) for part in observation.parts)):
        return default_layers(observation)
    return NetworkSpec([Dense(type="dense", size=256, activation="relu") for _ in range(2)])


def _is_image(part: Part) -> bool:
    return isinstance(part.space, Box) and part.space.is_image


def _where_action_joins(layers: NetworkSpec, observation: Space) -> tuple[list[Layer], list[Layer]]:
    """(layers of the observation alone, layers of observation and action): split at the last input that reads "action",
    as in TensorForce's critics, else before the first dense layer."""
    parts = [part.name for part in observation.parts] if isinstance(observation, Box) else []
    reading = [index for index, layer in enumerate(layers.root) if isinstance(layer, Input) and ACTION in layer.names]
    if not reading or ACTION in parts:
        return _at_first_dense(layers)
    last = max(index for index, layer in enumerate(layers.root) if layer.type == "input")
    join = layers.root[last]
    assert isinstance(join, Input)
    names = [name for name in join.names if name != ACTION]
    if reading != [last] or not names or join.aggregation_type != "concat":
        raise UserError(
            'in a critic\'s network the action joins the observation at the last input layer, by concat: {"type": '
            '"input", "names": [..., "action"]}; it can have no layers of its own before that'
        )
    alone = [*layers.root[:last], join.model_copy(update={"names": names}), Flatten(type="flatten")]
    if not (rest := list(layers.root[last + 1 :])):
        raise UserError("the critics' network needs a layer after the input at which the action joins")
    return alone, rest


def _at_first_dense(layers: NetworkSpec) -> tuple[list[Layer], list[Layer]]:
    """(layers of the observation alone, layers of observation and action)."""
    layers_of = list(layers.root)
    # Named branches see the observation alone; the joining layers begin at the last `input`.
    start = max((index + 1 for index, layer in enumerate(layers_of) if layer.type == "input"), default=0)
    for index in range(start, len(layers_of)):
        if layers_of[index].type in ("dense", "linear"):
            before = [each for i, each in enumerate(layers_of[:index]) if each.type != "flatten" or i < start]
            return [*before, Flatten(type="flatten")], layers_of[index:]
    raise UserError("the critics' network needs a dense or linear layer, where the action joins the observation")
