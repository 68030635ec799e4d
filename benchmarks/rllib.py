"""PPO and IMPALA on CartPole-v1 with two workers of four environments each, on Ray: at least 5 times RLlib's steps per
CPU second, all processes counted."""

from __future__ import annotations

import sys
from typing import Any

from contestants import dense, rllib, steppe
from interleave import at_least, conclude, interleave, is_quick

TWO_WORKERS: dict[str, Any] = {"network": dense(64, "tanh"), "num_workers": 2, "num_envs": 4}
PPO = TWO_WORKERS | {
    "agent": {"type": "ppo", "horizon": 128, "epochs": 4, "minibatches": 4, "learning_rate": 3e-4},
    "run_mode": "distributed",
}
"""Each worker has half of RLlib's batch of 1,024 timesteps and as many minibatches: equally many updates, half as
large."""
IMPALA = TWO_WORKERS | {"agent": {"type": "impala", "horizon": 20, "learning_rate": 1e-3}, "run_mode": "async"}
GYMNASIUM = {"environment": {"id": "CartPole-v1", "backend": "gymnasium"}}


def main() -> int:
    quick = is_quick(__doc__)
    scale, rounds = (1, 1) if quick else (4, 3)
    pairs = {
        "ppo": (PPO, ("compiled", {}), ("gymnasium", GYMNASIUM)),
        "impala": (IMPALA, ("gymnasium", GYMNASIUM)),
    }
    status = 0
    for agent, (settings, *variants) in pairs.items():
        peer = rllib(agent, 20_000 * scale, 8_000)
        ours = [
            steppe(f"Steppe {agent}, {name}", settings | fields, 100_000 * scale, 50_000) for name, fields in variants
        ]
        runs = interleave([peer, *ours], rounds)
        verdicts = [at_least(runs, peer.name, own.name, "cpu_us", 5) for own in ours]
        status |= conclude(str(__doc__), runs, verdicts, quick, name=f"rllib_{agent}")
    return status


if __name__ == "__main__":
    sys.exit(main())
