"""Runs every benchmark, one after the other; exits with 1 if a bar is missed. --quick only shows that they work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "startup",
    "first_timestep",
    "time_to_475",
    "ppo_cartpole_compiled",
    "ppo_cartpole_1024",
    "ppo_cartpole_host",
    "dqn_cartpole",
    "dqn_jax_peer",
    "sac_pendulum",
    "sac_half_cheetah",
    "other_agents",
    "atari_frames",
    "atari_ppo",
    "atari_dqn",
    "hogwild",
    "async_workers",
    "async_sac",
    "rllib",
    "serving_latency",
    "serving_concurrency",
    "serving_bookkeeping",
)


def main() -> int:
    failed = []
    for name in SCRIPTS:
        script = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, str(script), *sys.argv[1:]], check=False).returncode:
            failed.append(name)
    print("\nbars missed or not measured: " + ", ".join(failed) if failed else "\nevery bar is met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
