"""Simulators beside the Pods of run modes with workers; test_runs.py has one beside a driver that acts itself."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import Workplace
from processes import wait_until

ENVIRONMENT = {"type": "remote", "address": "127.0.0.1:5555"}
SERVE = ("python", "-m", "steppe", "env", "serve", "CartPole-v1", "--port", "5555")
# Serves for a while, then exceeds its memory limit.
GREEDY = """
import subprocess, sys, time
server = subprocess.Popen([sys.executable, "-m", "steppe", "env", "serve", "CartPole-v1", "--port", "5555"])
time.sleep(20)
held = bytearray(2 ** 30)
for place in range(0, len(held), 4096):
    held[place] = 1
"""


def simulator(workplace: Workplace, *command: str) -> dict[str, Any]:
    pods = workplace.pods
    return {
        "name": "world",
        "image": pods["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in pods.get("env", {}).items()],
        "volumeMounts": pods.get("volume_mounts", []),
    }


@pytest.mark.parametrize(
    ("mode", "agent"), [("async", "dqn"), pytest.param("distributed", "ppo", marks=pytest.mark.long)]
)
def test_every_worker_and_the_driver_have_a_simulator(workplace: Workplace, mode, agent):
    fields = {
        "agent": agent,
        "num_workers": 2,
        "total_timesteps": 6_000,
        "evaluation": {"episodes": 1, "every": 2_000},
        "kubernetes": {"sidecars": [simulator(workplace, *SERVE)]},
    }
    workplace.new("beside", run_mode=mode, environment=ENVIRONMENT, **fields)
    workplace.steppe("experiment", "start", "-e", "beside", "-c", "testbed", "--detach")
    wait_until(lambda: len(workplace.pods_of("worker")) == 2, "the workers' Pods", seconds=300, pause=1.0)
    for pod in [*workplace.pods_of("driver"), *workplace.pods_of("worker")]:
        assert len(pod["spec"]["containers"]) == 2
    # A simulator never ends by itself; the watcher in the background sees the end of the training and ends it.
    wait_until(
        lambda: not workplace.pods_of("driver") + workplace.pods_of("worker"), "all Pods to end", seconds=300, pause=1.0
    )
    status = workplace.status("beside")
    assert (status["state"], status["timestep"] >= 6_000) == ("completed", True)
    metrics = workplace.folder / "found"
    workplace.steppe("experiment", "download", "-e", "beside", "--to", str(metrics))
    assert "evaluation_return" in (metrics / "metrics.jsonl").read_text()


def test_a_simulator_out_of_memory_is_named_in_the_error(workplace: Workplace):
    greedy = simulator(workplace, "python", "-c", GREEDY) | {"resources": {"limits": {"memory": "400Mi"}}}
    environment = ENVIRONMENT | {"reconnect": 5.0}
    workplace.new("greedy", environment=environment, total_timesteps=100_000_000, kubernetes={"sidecars": [greedy]})
    said = workplace.steppe("experiment", "start", "-e", "greedy", "-c", "testbed", exit_code=1)
    assert 'the container "world" beside' in said
    assert "ran out of memory (its limit is 400Mi); give it more by resources.limits.memory" in said
    assert "kubernetes.driver.memory" not in said
