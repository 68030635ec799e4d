"""Short runs of experiments for tests."""

from __future__ import annotations

from pathlib import Path

from steppe import runners
from steppe.runners._base import Outcome
from steppe.specs.experiment import ExperimentSpec, load_experiment

TINY_PPO = {"type": "ppo", "horizon": 16, "minibatches": 2, "epochs": 2}
TINY_VPG = {"type": "vpg", "horizon": 8}
TINY_DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 32, "memory": {"capacity": 256}}


def experiment(environment="CartPole-v1", agent=None, **fields) -> ExperimentSpec:
    fields = {
        "name": "run",
        "seed": 1,
        "num_envs": 4,
        "video": False,
        "environment": environment,
        "agent": agent or TINY_PPO,
        **fields,
    }
    return load_experiment(None, fields, [], Path.cwd(), options=False)


def train(
    folder: Path, spec: ExperimentSpec, *, resume=False, request=lambda: None, show=lambda progress: None
) -> Outcome:
    folder.mkdir(exist_ok=True)
    return runners.run(spec, folder, resume=resume, request=request, on_progress=show)
