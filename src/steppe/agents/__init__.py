"""The algorithms, by name. Importing this is light: an algorithm's module (and JAX) is imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steppe.errors import SpecError
from steppe.specs.describing.docstrings import sentence_of_class
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.loading.validation import unknown_word

if TYPE_CHECKING:
    from steppe.agents._base import Agent, AgentContext
    from steppe.specs._base import Settings
    from steppe.specs.experiment import ExperimentSpec

__all__ = ["agent_class", "make", "names", "notices", "sentence", "settings_class"]

_AGENTS = {
    "random": ("steppe.agents.idle", "Random"),
    "constant": ("steppe.agents.idle", "Constant"),
    "vpg": ("steppe.agents.vpg", "VPG"),
    "a2c": ("steppe.agents.a2c", "A2C"),
    "a3c": ("steppe.agents.a2c", "A3C"),
    "ppo": ("steppe.agents.ppo", "PPO"),
    "trpo": ("steppe.agents.trpo", "TRPO"),
    "impala": ("steppe.agents.impala", "IMPALA"),
    "dqn": ("steppe.agents.dqn", "DQN"),
    "ddqn": ("steppe.agents.dqn", "DDQN"),
    "dqn_nstep": ("steppe.agents.dqn", "NStepDQN"),
    "dqfd": ("steppe.agents.dqfd", "DQfD"),
    "qr_dqn": ("steppe.agents.dqn", "QRDQN"),
    "pqn": ("steppe.agents.pqn", "PQN"),
    "ddpg": ("steppe.agents.ddpg", "DDPG"),
    "td3": ("steppe.agents.td3", "TD3"),
    "sac": ("steppe.agents.sac", "SAC"),
    "naf": ("steppe.agents.naf", "NAF"),
}

_QUANTILES = 'use "qr_dqn", which learns quantiles in place of fixed atoms'
_OTHER_NAMES = {
    "rainbow": 'it is "dqn" with double, dueling, n_step, noisy, quantiles and a prioritized_replay memory',
    "c51": _QUANTILES,
    "categorical_dqn": _QUANTILES,
    "double_dqn": 'use "ddqn", or "dqn" with double',
    "dueling_dqn": 'use "dqn" with "dueling": true',
    "nstep_dqn": 'use "dqn_nstep", or "dqn" with n_step',
    "acktr": 'use "trpo", whose natural gradients are found by conjugate gradients in place of Kronecker factors',
    "reinforce": 'use "vpg" with "baseline": "none"',
}
"""Common names of agents that have another name here, and a hint for each."""


def names() -> list[str]:
    """The names of all agents."""
    return list(_AGENTS)


def sentence(name: str) -> str:
    """One sentence about an agent, read from its source file, since importing it would import JAX."""
    return sentence_of_class(*_AGENTS[name])


def agent_class(spec: AgentSpec) -> type[Agent[Any]]:
    """The algorithm that a spec names."""
    if spec.type in _OTHER_NAMES:
        place = spec.origins.place("type")
        raise SpecError(f'there is no agent "{spec.type}"{place}; {_OTHER_NAMES[spec.type]}')
    if spec.type not in _AGENTS:
        raise unknown_word("agent", spec.type, names(), source=spec.origins, path="type", listed_by="steppe agents")
    module, attribute = _AGENTS[spec.type]
    return getattr(import_module(module), attribute)


def settings_class(name: str) -> type[Settings]:
    """The settings that the algorithm of this name takes."""
    return agent_class(AgentSpec.model_validate(name)).Settings


def notices(spec: ExperimentSpec, num_envs: int) -> list[str]:
    """Notices of how the agent's settings were understood, for an experiment with `num_envs` environments."""
    algorithm = agent_class(spec.agent)
    settings = spec.agent.settings_as(algorithm.Settings)
    found = [*spec.agent.notices, *settings.notices]
    if spec.network is not None and algorithm.experience == "none":
        found.append(f'the network has no effect: agent "{spec.agent.type}" does not learn')
    timesteps = getattr(settings, "rollout_timesteps", None)
    if timesteps is not None and settings.rollout_episodes is None and timesteps % num_envs:
        full = -(-timesteps // num_envs) * num_envs
        found.append(f"rollout_timesteps {timesteps} is rounded up to {full}, a multiple of num_envs {num_envs}")
    episodes = getattr(settings, "rollout_episodes", None)
    if (
        spec.agent.is_for_tensorforce
        and episodes is not None
        and spec.network is not None
        and spec.network.is_recurrent
    ):
        found.append(
            f"the network remembers, so each update learns from {episodes} whole episodes; memory.capacity "
            f"({timesteps:,}) is raised if they need more"
        )
    return found


def make(spec: AgentSpec, context: AgentContext) -> Agent[Any]:
    """The agent that a spec describes, for an environment's spaces."""
    algorithm = agent_class(spec)
    return algorithm(spec.settings_as(algorithm.Settings), context)
