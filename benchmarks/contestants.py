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

PPO = {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 3e-4},
    "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
    "num_envs": 8,
}
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
    },
    "network": [{"type": "dense", "size": 64, "activation": "relu"}] * 2,
    "num_envs": 1,
}
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


def steppe(name: str, settings: dict[str, Any], timesteps: int, warm_up: int, **fields: Any) -> Contestant:
    """Steppe with these settings, and further fields of the experiment; CartPole-v1 unless they say otherwise."""
    fields = {"environment": "CartPole-v1", "total_timesteps": timesteps} | settings | fields

    def run(seed: int) -> dict[str, Any]:
        arguments = [json.dumps(fields | {"seed": seed}), "--warm-up", str(warm_up)]
        return output_of([sys.executable, str(HERE / "train_steppe.py"), *arguments])

    return Contestant(name, run)


def sb3(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1") -> Contestant:
    """stable-baselines3 at its best."""
    words = ["stable_baselines3", agent, "--environment", environment, "--threads", "1"]
    return _peer(SB3, words, timesteps, warm_up)


def sbx(agent: str, timesteps: int, warm_up: int, environment: str = "CartPole-v1") -> Contestant:
    """The JAX sibling of stable-baselines3."""
    return _peer("sbx", ["sbx", agent, "--environment", environment], timesteps, warm_up)


def _peer(name: str, words: list[str], timesteps: int, warm_up: int) -> Contestant:
    lengths = ["--timesteps", str(timesteps), "--warm-up", str(warm_up)]
    return Contestant(name, lambda seed: output_of(peer_command(*words, *lengths, "--seed", str(seed))))


def peer_command(*arguments: str) -> list[str]:
    """train_peer.py in the peers' own virtual environment, $STEPPE_PEERS_VENV or .venv-peers in the repository."""
    python = Path(os.environ.get("STEPPE_PEERS_VENV") or HERE.parent / ".venv-peers") / "bin" / "python"
    if not python.exists():
        sys.exit(
            f"error: there are no peers to compare with at {python}; benchmarks/README.md says how to install them"
        )
    return [str(python), str(HERE / "train_peer.py"), *arguments]
