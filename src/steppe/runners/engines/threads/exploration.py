"""A different final epsilon for each worker, as in asynchronous Q-learning (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.agents._base import Agent

FINAL_EPSILONS = (0.1, 0.01, 0.5)
CHANCES = (0.4, 0.3, 0.3)
"""The probability of each final epsilon (section 5.1 of the paper)."""


def explores_apart(agent: Agent[Any], num_workers: int) -> bool:
    """Whether workers draw their final epsilons: for agents that learn Q-values, unless the user has set one."""
    return num_workers > 1 and agent.has_default_final_epsilon and not agent.context.deterministic


def final_epsilon_of(seed: int, worker: int) -> float:
    """The final epsilon of a worker, the same for every resumption of the run."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(worker, 1)))
    return float(rng.choice(FINAL_EPSILONS, p=CHANCES))


def with_final_epsilon(agent: Agent[Any], final_epsilon: Any) -> Agent[Any]:
    """A copy of the agent whose epsilon falls to `final_epsilon`, which may be traced."""
    exploration = agent.settings.exploration.model_copy(update={"final_epsilon": final_epsilon})
    return agent.with_settings(exploration=exploration)
