"""Simulators beside the Pods of run modes whose workers act; test_runs.py has one beside a driver that acts itself."""

from __future__ import annotations

import pytest
from cluster_runs import Workplace
from processes import wait_until

ENVIRONMENT = {"type": "remote", "address": "127.0.0.1:5555"}


@pytest.mark.parametrize(
    ("mode", "agent"), [("async", "dqn"), pytest.param("distributed", "ppo", marks=pytest.mark.long)]
)
def test_every_worker_and_the_driver_have_one(workplace: Workplace, mode, agent):
    pods = workplace.pods
    simulator = {
        "image": pods["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "steppe", "env", "serve", "CartPole-v1", "--port", "5555"],
        "env": [{"name": name, "value": value} for name, value in pods.get("env", {}).items()],
        "volumeMounts": pods.get("volume_mounts", []),
    }
    fields = {
        "agent": agent,
        "num_workers": 2,
        "total_timesteps": 6_000,
        "evaluation": {"episodes": 1, "every": 2_000},
        "kubernetes": {"sidecars": [simulator]},
    }
    workplace.new("beside", run_mode=mode, environment=ENVIRONMENT, **fields)
    workplace.steppe("experiment", "start", "-e", "beside", "-c", "testbed", "--detach")
    wait_until(lambda: len(workplace.pods_of("worker")) == 2, "the workers' Pods", seconds=300, pause=1.0)
    for pod in [*workplace.pods_of("driver"), *workplace.pods_of("worker")]:
        assert len(pod["spec"]["containers"]) == 2
    status = workplace.wait_for("beside", "completed")
    assert status["timestep"] >= 6_000
    metrics = workplace.folder / "found"
    workplace.steppe("experiment", "download", "-e", "beside", "--to", str(metrics))
    assert "evaluation_return" in (metrics / "metrics.jsonl").read_text()
    # A simulator knows no end: whoever sees that the training is over ends it too.
    wait_until(
        lambda: not workplace.pods_of("driver") + workplace.pods_of("worker"), "all Pods to end", seconds=120, pause=1.0
    )
