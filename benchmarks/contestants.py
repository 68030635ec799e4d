"""The compared libraries: Steppe and its peers with the same hyper-parameters, each run in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from interleave import Contestant, output_of

HERE = Path(__file__).parent
SB3 = "stable-baselines3, 1 thread"
"""The reference of every ratio: stable-baselines3 at its best, with torch.set_num_threads(1). For networks this small
more threads cost a multiple of the CPU time, and on a loaded machine of the wall time too."""
SB3_AS_IT_COMES = "stable-baselines3 as it comes"
"""With as many torch threads as there are cores, which for larger networks saves wall time and costs CPU time."""


def dense(size: int, activation: str) -> list[dict[str, Any]]:
    """Two dense layers."""
    return [{"type": "dense", "size": size, "activation": activation}] * 2


PPO = {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 3e-4},
    "network": dense(64, "tanh"),
    "num_envs": 8,
}
PPO_BY_DEFAULT = PPO | {"agent": PPO["agent"] | {"epochs": 10, "minibatches": 16}}
"""The settings of `steppe train CartPole-v1` without any option."""
DQN: dict[str, Any] = {
    "agent": {
        "type": "dqn",
        "learning_rate": 1e-3,
        "memory": {"type": "replay", "capacity": 50_000},
        "learning_starts": 1_000,
        "batch_size": 128,
        "update_frequency": 4,
        "updates": 1,
        "target_sync_frequency": 125,
        "exploration": {"type": "epsilon_anneal", "final_epsilon": 0.02, "timesteps": 10_000},
        "double": False,
        "n_step": 3,
        "huber": True,
    },
    "network": dense(64, "relu"),
    "num_envs": 1,
}
DQN_JAX = DQN | {
    "agent": DQN["agent"]
    | {
        "max_gradient_norm": None,
        "memory": {"type": "replay", "capacity": 10_000},
        "update_frequency": 1,
        "n_step": 1,
        "huber": False,
    },
    "num_envs": 4,
}
"""Settings that rejax can express: it updates after each step of all environments, from single rewards and squared
errors. The memory has PureJaxRL's size, since rejax draws without replacement, which costs more in a larger memory."""
SAC: dict[str, Any] = {
    "agent": {
        "type": "sac",
        "learning_rate": 3e-4,
        "memory": {"type": "replay", "capacity": 250_000},
        "learning_starts": 1_000,
        "batch_size": 256,
        "update_frequency": 1,
        "updates": 1,
    },
    "network": dense(256, "relu"),
    "num_envs": 1,
}
ATARI_PPO = {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4, "clip": 0.1},
    "environment": "ALE/Breakout-v5",
    "num_envs": 8,
}
"""The network is the default for images, the one of the DQN paper in Nature."""
ATARI_DQN = {
    "agent": {
        "type": "dqn",
        "learning_rate": 1e-4,
        "memory": {"type": "replay", "capacity": 10_000},
        "learning_starts": 1_000,
        "batch_size": 32,
        "n_step": 1,
        "update_frequency": 4,
        "updates": 1,
        "target_sync_frequency": 250,
        "exploration": {"type": "epsilon_anneal", "final_epsilon": 0.01, "timesteps": 10_000},
        "double": False,
        "huber": True,
    },
    "environment": "ALE/Breakout-v5",
    "num_envs": 1,
}
OTHERS: dict[str, dict[str, Any]] = {
    "a2c": {
        "agent": {
            "type": "a2c",
            "horizon": 5,
            "learning_rate": 7e-4,
            "gae_lambda": 1.0,
            "entropy_coefficient": 0.01,
            "normalize_advantages": False,
            "optimizer": "rmsprop",
        },
        "network": dense(64, "tanh"),
        "num_envs": 8,
    },
    "trpo": {
        "agent": {
            "type": "trpo",
            "horizon": 256,
            "learning_rate": 0.01,
            "cg_max_iterations": 15,
            "ls_max_iterations": 10,
            "baseline_optimizer": {"type": "multi_step", "num_steps": 10, "optimizer": "adam"},
        },
        "network": dense(64, "tanh"),
        "num_envs": 8,
    },
    "qr_dqn": DQN | {"agent": DQN["agent"] | {"type": "qr_dqn", "quantiles": 50, "n_step": 1}},
    "ddpg": SAC | {"agent": SAC["agent"] | {"type": "ddpg", "learning_rate": 1e-3}, "environment": "Pendulum-v1"},
    "td3": SAC | {"agent": SAC["agent"] | {"type": "td3", "learning_rate": 1e-3}, "environment": "Pendulum-v1"},
}
"""Agents that stable-baselines3 or sb3-contrib have too and that have no script of their own."""

ONE_CORE = {"STEPPE_CORES": "1"}
"""Environment variables of a run on one core."""


def steppe(
    name: str,
    settings: dict[str, Any],
    timesteps: int,
    warm_up: int,
    variables: dict[str, str] | None = None,
    **fields: Any,
) -> Contestant:
    """Steppe with these settings, environment variables and further fields of the experiment.

    The environment is CartPole-v1 unless the settings or the fields name another.
    """
    fields = {"environment": "CartPole-v1", "total_timesteps": timesteps} | settings | fields
    has_processes = fields.get("run_mode") in ("distributed", "async")

    def run(seed: int) -> dict[str, Any]:
        arguments = [json.dumps(fields | {"seed": seed}), "--warm-up", str(warm_up)]
        arguments += ["--tree"] if has_processes else []
        return output_of([sys.executable, str(HERE / "train_steppe.py"), *arguments], variables)

    return Contestant(name, run)


def sb3(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1", threads: int = 1) -> Contestant:
    """stable-baselines3 with a number of torch threads; 0 leaves the number to torch."""
    arguments = ["stable_baselines3", agent, "--environment", environment]
    arguments += ["--threads", str(threads)] if threads else []
    name = {0: SB3_AS_IT_COMES, 1: SB3}.get(threads, f"stable-baselines3, {threads} threads")
    return _peer(name, peer_command(*arguments), timesteps, warm_up)


def sbx(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1") -> Contestant:
    """The JAX sibling of stable-baselines3."""
    return _peer("sbx", peer_command("sbx", agent, "--environment", environment), timesteps, warm_up)


def _peer(name: str, command: list[str], timesteps: int, warm_up: int) -> Contestant:
    command = [*command, "--timesteps", str(timesteps), "--warm-up", str(warm_up)]
    return Contestant(name, lambda seed: output_of([*command, "--seed", str(seed)]))


def peer_command(*arguments: str, script: str = "train_peer.py") -> list[str]:
    """A script in the peers' own virtual environment, $STEPPE_PEERS_VENV or .venv-peers in the repository."""
    return [python_of("STEPPE_PEERS_VENV", ".venv-peers"), str(HERE / script), *arguments]


def torch_loop(timesteps: int, warm_up: int, threads: int) -> Contestant:
    """PPO on Breakout in one PyTorch loop over C++ environments, as CleanRL's users write it."""
    command = peer_command("--threads", str(threads), script="peers/ppo_torch.py")
    return _peer(_with_threads("PyTorch loop", threads), command, timesteps, warm_up)


def rejax_dqn(timesteps: int, threads: int) -> Contestant:
    """DQN_JAX by rejax, limited to a number of XLA threads."""
    return _jax_peer("rejax", "dqn_rejax.py", timesteps, threads)


def jax_dqn(timesteps: int, threads: int) -> Contestant:
    """DQN_JAX in one JAX loop, as PureJaxRL's users write it."""
    return _jax_peer("JAX loop", "dqn_jax.py", timesteps, threads)


def _jax_peer(name: str, script: str, timesteps: int, threads: int) -> Contestant:
    command = [python_of("STEPPE_REJAX_VENV", ".venv-rejax"), "-W", "ignore", str(HERE / "peers" / script)]
    command += ["--timesteps", str(timesteps)]
    variables = {"NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
    return Contestant(_with_threads(name, threads), lambda seed: output_of([*command, "--seed", str(seed)], variables))


def rllib(agent: str, timesteps: int, warm_up: int) -> Contestant:
    """RLlib with two environment runners of four environments each, and a learner in the driver, its default."""
    command = [python_of("STEPPE_RLLIB_VENV", ".venv-rllib"), str(HERE / "train_rllib.py"), agent]
    return _peer(f"RLlib {agent}", command, timesteps, warm_up)


def _with_threads(name: str, threads: int) -> str:
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def python_of(variable: str, folder: str) -> str:
    """The Python of a virtual environment: the one that the variable names, or the folder in the repository."""
    python = Path(os.environ.get(variable) or HERE.parent / folder) / "bin" / "python"
    if not python.exists():
        sys.exit(
            f"error: there are no peers to compare with at {python}; benchmarks/README.md says how to install them"
        )
    return str(python)
