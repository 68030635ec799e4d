"""Who is compared: Steppe and its peers with the same hyper-parameters, each run in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from interleave import Contestant, output_of

HERE = Path(__file__).parent
SB3 = "stable-baselines3, 1 thread"
"""What every ratio is taken against: with torch.set_num_threads(1) it is at its best. For networks this small more
threads cost a multiple of the CPU time, and on a loaded machine of the wall time too."""
SB3_AS_IT_COMES = "stable-baselines3 as it comes"
"""With as many torch threads as there are cores, which for larger networks saves wall time and costs CPU time."""

PPO = {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 3e-4},
    "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
    "num_envs": 8,
}
PPO_BY_DEFAULT = PPO | {"agent": PPO["agent"] | {"epochs": 10, "minibatches": 16}}
"""What `steppe train CartPole-v1` does without any setting."""
DQN = {
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
    "network": [{"type": "dense", "size": 64, "activation": "relu"}] * 2,
    "num_envs": 1,
}
DQN_JAX = {
    "agent": {
        "type": "dqn",
        "learning_rate": 1e-3,
        "max_gradient_norm": None,
        "memory": {"type": "replay", "capacity": 10_000},
        "learning_starts": 1_000,
        "batch_size": 128,
        "update_frequency": 1,
        "updates": 1,
        "target_sync_frequency": 125,
        "exploration": {"type": "epsilon_anneal", "final_epsilon": 0.02, "timesteps": 10_000},
        "double": False,
        "n_step": 1,
        "huber": False,
    },
    "network": [{"type": "dense", "size": 64, "activation": "relu"}] * 2,
    "num_envs": 4,
}
"""What rejax can express: it updates after each step of all environments, from single rewards and squared errors. The
memory is of PureJaxRL's size, since rejax draws without replacement, which costs more the larger the memory is."""
SAC = {
    "agent": {
        "type": "sac",
        "learning_rate": 3e-4,
        "memory": {"type": "replay", "capacity": 250_000},
        "learning_starts": 1_000,
        "batch_size": 256,
        "update_frequency": 1,
        "updates": 1,
    },
    "network": [{"type": "dense", "size": 256, "activation": "relu"}] * 2,
    "num_envs": 1,
}
ATARI_PPO = {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4, "clip": 0.1},
    "environment": "ALE/Breakout-v5",
    "num_envs": 8,
}
"""The network is the one that images get by themselves, Nature's."""
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
        "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
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
        "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
        "num_envs": 8,
    },
    "qr_dqn": DQN | {"agent": DQN["agent"] | {"type": "qr_dqn", "quantiles": 50, "n_step": 1}},
    "ddpg": SAC | {"agent": SAC["agent"] | {"type": "ddpg", "learning_rate": 1e-3}, "environment": "Pendulum-v1"},
    "td3": SAC | {"agent": SAC["agent"] | {"type": "td3", "learning_rate": 1e-3}, "environment": "Pendulum-v1"},
}
"""The agents that stable-baselines3 and sb3-contrib have too, beside those with a page of their own."""


ONE_CORE = {"STEPPE_CORES": "1"}
"""Environment variables of a run that spreads nothing over the cores."""


def steppe(
    name: str,
    settings: dict[str, Any],
    timesteps: int,
    warm_up: int,
    variables: dict[str, str] | None = None,
    **fields: Any,
) -> Contestant:
    """Steppe with these settings, environment variables, and further fields of the experiment; CartPole-v1 unless they
    say otherwise."""
    fields = {"environment": "CartPole-v1", "total_timesteps": timesteps} | settings | fields
    has_processes = fields.get("run_mode") in ("distributed", "async")

    def run(seed: int) -> dict[str, Any]:
        arguments = [json.dumps(fields | {"seed": seed}), "--warm-up", str(warm_up)]
        arguments += ["--tree"] if has_processes else []
        return output_of([sys.executable, str(HERE / "train_steppe.py"), *arguments], variables)

    return Contestant(name, run)


def sb3(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1", threads: int = 1) -> Contestant:
    """stable-baselines3 at its best; large networks may want more threads, and 0 are as many as torch takes."""
    words = ["stable_baselines3", agent, "--environment", environment]
    words += ["--threads", str(threads)] if threads else []
    name = {0: SB3_AS_IT_COMES, 1: SB3}.get(threads, f"stable-baselines3, {threads} threads")
    return _peer(name, words, timesteps, warm_up)


def sbx(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1") -> Contestant:
    """The JAX sibling of stable-baselines3."""
    return _peer("sbx", ["sbx", agent, "--environment", environment], timesteps, warm_up)


def _peer(name: str, words: list[str], timesteps: int, warm_up: int) -> Contestant:
    lengths = ["--timesteps", str(timesteps), "--warm-up", str(warm_up)]
    return Contestant(name, lambda seed: output_of(peer_command(*words, *lengths, "--seed", str(seed))))


def peer_command(*arguments: str) -> list[str]:
    """train_peer.py in the peers' own virtual environment, $STEPPE_PEERS_VENV or .venv-peers in the repository."""
    return [_python_of("STEPPE_PEERS_VENV", ".venv-peers"), str(HERE / "train_peer.py"), *arguments]


def torch_loop(timesteps: int, warm_up: int, threads: int) -> Contestant:
    """PPO on Breakout in one PyTorch loop over C++ environments, as CleanRL's users write it."""
    words = [peer_command()[0], str(HERE / "peers" / "ppo_torch.py"), "--threads", str(threads)]
    words += ["--timesteps", str(timesteps), "--warm-up", str(warm_up)]
    name = f"PyTorch loop, {threads} thread{'s' if threads > 1 else ''}"
    return Contestant(name, lambda seed: output_of([*words, "--seed", str(seed)]))


def rejax_dqn(timesteps: int, threads: int) -> Contestant:
    """DQN_JAX by rejax, held to so many threads of XLA."""
    return _jax_peer("rejax", "dqn_rejax.py", timesteps, threads)


def jax_dqn(timesteps: int, threads: int) -> Contestant:
    """DQN_JAX in one JAX loop, as PureJaxRL's users write it."""
    return _jax_peer("JAX loop", "dqn_jax.py", timesteps, threads)


def _jax_peer(name: str, script: str, timesteps: int, threads: int) -> Contestant:
    words = [_python_of("STEPPE_REJAX_VENV", ".venv-rejax"), "-W", "ignore", str(HERE / "peers" / script)]
    words += ["--timesteps", str(timesteps)]
    variables = {"NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
    return Contestant(
        f"{name}, {threads} thread{'s' if threads > 1 else ''}",
        lambda seed: output_of([*words, "--seed", str(seed)], variables),
    )


def rllib(agent: str, timesteps: int, warm_up: int) -> Contestant:
    """RLlib with two environment runners of four environments each, and a learner in the driver, its default."""
    python = _python_of("STEPPE_RLLIB_VENV", ".venv-rllib")
    words = [python, str(HERE / "train_rllib.py"), agent, "--timesteps", str(timesteps), "--warm-up", str(warm_up)]
    return Contestant(f"RLlib {agent}", lambda seed: output_of([*words, "--seed", str(seed)]))


def _python_of(variable: str, folder: str) -> str:
    """The Python of a virtual environment beside this one: where the variable says, or in the repository."""
    python = Path(os.environ.get(variable) or HERE.parent / folder) / "bin" / "python"
    if not python.exists():
        sys.exit(
            f"error: there are no peers to compare with at {python}; benchmarks/README.md says how to install them"
        )
    return str(python)
