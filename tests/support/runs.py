"""Short runs of experiments for tests."""

from __future__ import annotations

from pathlib import Path

from steppe import runners
from steppe.policies.policy import load_policy
from steppe.runners._base import RunOutcome
from steppe.spec_files import load_experiment
from steppe.specs.experiment import ExperimentSpec

TINY_PPO = {"type": "ppo", "horizon": 16, "minibatches": 2, "epochs": 2}
TINY_VPG = {"type": "vpg", "horizon": 8}
TINY_DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 32, "memory": {"capacity": 256}}


def experiment(environment="CartPole-v1", agent=None, **fields) -> ExperimentSpec:
    fields = {
        "name": "run",
        "seed": 1,
        "num_envs": 4,
        "video": False,
        "final_evaluation": None,
        "environment": environment,
        "agent": agent or TINY_PPO,
        **fields,
    }
    return load_experiment(None, fields, [], Path.cwd(), options=False)


def train(
    folder: Path, spec: ExperimentSpec, *, resume=False, request=lambda: None, show=lambda progress: None
) -> RunOutcome:
    folder.mkdir(exist_ok=True)
    return runners.run(spec, folder, resume=resume, request=request, on_progress=show)


def evaluated(folder: Path, environment="CartPole-v1", episodes=20, seed=100, which="policy") -> float:
    """The mean return of a saved policy that acts greedily, in NumPy, in gymnasium's own environment."""
    import gymnasium

    policy, env, total = load_policy(folder / which), gymnasium.make(environment), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes
