"""Steppe: reinforcement-learning experiments at any size.

import steppe
experiment = steppe.train("CartPole-v1", agent="ppo", total_timesteps=500_000)
action = experiment.policy().act(observation)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steppe import errors
    from steppe.api import check_env, evaluate, load_policy, train
    from steppe.errors import StopTraining
    from steppe.experiments import listed as experiments
    from steppe.experiments.cluster import Cluster
    from steppe.experiments.experiment import Experiment
    from steppe.experiments.project import Project
    from steppe.policies.policy import Policy
    from steppe.records.evaluation import Evaluation
    from steppe.runners.engines.asynchronous import AsyncLearner, AsyncWorker, UniformReplay

    __version__: str

__all__ = [
    "AsyncLearner",
    "AsyncWorker",
    "Cluster",
    "Evaluation",
    "Experiment",
    "Policy",
    "Project",
    "StopTraining",
    "UniformReplay",
    "__version__",
    "check_env",
    "errors",
    "evaluate",
    "experiments",
    "load_policy",
    "train",
]

# Imported at first use: `import steppe` stays quick, and no layer imports one above it.
_HOMES = {
    "Cluster": "steppe.experiments.cluster",
    "Project": "steppe.experiments.project",
    "check_env": "steppe.api",
    "evaluate": "steppe.api",
    "train": "steppe.api",
    "Experiment": "steppe.experiments.experiment",
    "Evaluation": "steppe.records.evaluation",
    "Policy": "steppe.policies.policy",
    "load_policy": "steppe.api",
    "StopTraining": "steppe.errors",
    "AsyncLearner": "steppe.runners.engines.asynchronous",
    "AsyncWorker": "steppe.runners.engines.asynchronous",
    "UniformReplay": "steppe.runners.engines.asynchronous",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("steppe")
    if name in ("errors", "experiments"):
        return import_module(f"steppe.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'steppe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
