"""The algorithms, by name. Importing this is light: an algorithm's module (and JAX) is imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steppe.specs.agent import AgentSpec
from steppe.specs.validation import unknown_word

if TYPE_CHECKING:
    from steppe.agents._base import Agent, Situation
    from steppe.specs._base import Settings

__all__ = ["agent_class", "make", "names", "settings_class"]

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


def names() -> list[str]:
    """Every agent that can be named."""
    return list(_AGENTS)


def agent_class(spec: AgentSpec) -> type[Agent[Any]]:
    """The algorithm that a spec names."""
    if spec.type not in _AGENTS:
        raise unknown_word("agent", spec.type, names(), source=spec.origins, path="type", listed_by="steppe agents")
    module, attribute = _AGENTS[spec.type]
    return getattr(import_module(module), attribute)


def settings_class(name: str) -> type[Settings]:
    """The settings that the algorithm of this name takes."""
    return agent_class(AgentSpec.model_validate(name)).Settings


def make(spec: AgentSpec, situation: Situation) -> Agent[Any]:
    """The agent that a spec describes, for an environment's spaces."""
    algorithm = agent_class(spec)
    return algorithm(spec.settings_as(algorithm.Settings), situation)
