"""A different final epsilon for each worker, as in asynchronous Q-learning (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from steppe.agents._base import Agent
from steppe.specs.learning.exploration import EpsilonAnneal

FINAL_EPSILONS = (0.1, 0.01, 0.5)
CHANCES = (0.4, 0.3, 0.3)
"""The probability of each final epsilon (section 5.1 of the paper)."""


def explores_apart(agent: Agent[Any], num_workers: int) -> bool:
    """Whether workers draw their final epsilons: for agents that learn Q-values, unless the user has set one."""
    exploration: Any = getattr(agent.settings, "exploration", None)
    if agent.kind != "q_values" or num_workers == 1 or agent.context.deterministic:
        return False
    if not isinstance(exploration, EpsilonAnneal):
        return False
    # A file may spell out the agent's default, which does not count as set.
    default: Any = type(agent.settings).model_fields["exploration"].default
    usual = default.final_epsilon if isinstance(default, EpsilonAnneal) else None
    return "final_epsilon" not in exploration.model_fields_set or exploration.final_epsilon == usual


def final_epsilon_of(seed: int, worker: int) -> float:
    """The final epsilon of a worker, the same for every resumption of the run."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(worker, 1)))
    return float(rng.choice(FINAL_EPSILONS, p=CHANCES))


def with_final_epsilon(agent: Agent[Any], final_epsilon: Any) -> Agent[Any]:
    """A copy of the agent whose epsilon falls to `final_epsilon`, which may be traced."""
    exploration = agent.settings.exploration.model_copy(update={"final_epsilon": final_epsilon})
    explorer = copy.copy(agent)
    explorer.settings = agent.settings.model_copy(update={"exploration": exploration})
    return explorer
