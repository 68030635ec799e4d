"""A simulator's own image needs only Steppe from pip, and only the workers have it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import PODS, Workplace
from kube_testbed import BASE, ROOT, Testbed

from steppe.images import FILES

OWN_IMAGE = "localhost/tank-simulator:test"
SIMULATOR = '''
import gymnasium
import numpy as np


class Tank(gymnasium.Env):
    """Keep the level of a leaking tank near the middle: nothing, a little or much flows in."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.steps = self.np_random.uniform(-0.5, 0.5), 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        self.level = float(np.clip(self.level + 0.1 * (int(action) - 1), -1.0, 1.0))
        return self._seen(), -abs(self.level), False, self.steps >= 50, {}

    def _seen(self):
        return np.array([self.level, self.steps / 50 - 1.0], np.float32)
'''
PROJECT = """
[project]
name = "tank-simulator"
version = "7.0"
dependencies = ["gymnasium"]
[tool.setuptools]
py-modules = ["tank_simulator"]
"""
# No "python", as in the images of Debian and Ubuntu, on which most simulators are based.
DOCKERFILE = f"""
FROM {BASE}
RUN rm -f /usr/local/bin/python
COPY simulator /opt/simulator
RUN pip install /opt/simulator
COPY wheel /opt/wheel
RUN pip install "$(ls /opt/wheel/*.whl)[cluster]"
"""
UNCHANGING = {"SOURCE_DATE_EPOCH": "1700000000"}
"""Makes a wheel of the same source the same file, so that its layer is not built again."""


@pytest.fixture(scope="module")
def own_image(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image built as the author of a simulator would."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "simulator").mkdir()
    (folder / "simulator" / "tank_simulator.py").write_text(SIMULATOR)
    (folder / "simulator" / "pyproject.toml").write_text(PROJECT)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    wheel_of_this_source(folder / "wheel", folder / "source")
    testbed.kube("base")
    testbed.kube("build", "-t", OWN_IMAGE, str(folder))
    return OWN_IMAGE


def wheel_of_this_source(folder: Path, copy: Path) -> None:
    """The wheel as it would be published; built from a copy, since building leaves files beside the source."""
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(copy)]
    done = subprocess.run(command, env=os.environ | UNCHANGING, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for wheel in folder.iterdir():
        os.utime(wheel, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def pods(image: str) -> dict[str, Any]:
    """Steppe's own image for the driver; a mounted source would be mounted into the workers' Pods too."""
    return PODS | {"image": image}


def fields_of(own_image: str, environment: str = "tank_simulator:Tank", **more: Any) -> dict[str, Any]:
    return {
        "environment": environment,
        "agent": {"type": "dqn", "learning_starts": 200},
        "run_mode": "async",
        "num_workers": 2,
        "total_timesteps": 3_000,
        "kubernetes": {"worker": {"image": own_image}},
    } | more


def test_only_the_workers_have_the_simulator(workplace: Workplace, own_image: str):
    # This machine does not have it either.
    said = workplace.new("tank", **fields_of(own_image))
    assert "not checked yet, since its environment is not installed here" in said
    workplace.steppe("experiment", "start", "-e", "tank", "-c", "testbed")
    status = workplace.status("tank")
    assert (status["state"], status["timestep"] >= 3_000) == ("completed", True), status
    found = workplace.folder / "found"
    workplace.steppe("experiment", "download", "-e", "tank", "--to", str(found))
    assert "a worker will report its spaces" in (found / "log.txt").read_text()
    policy = json.loads((found / "policy" / "policy.json").read_text())
    assert (policy["observation"]["shape"], policy["action"]["n"]) == ([2], 3)
    lines = [json.loads(line) for line in (found / "metrics.jsonl").read_text().splitlines()]
    # Every episode has 50 timesteps with rewards from -1 to 0, so no other environment was played.
    assert lines[-1]["mean_length"] == 50
    assert -50 <= lines[-1]["mean_return"] <= 0


def test_an_environment_that_workers_lack_too_is_a_one_sentence_error(workplace: Workplace, own_image: str):
    workplace.new("typo", **fields_of(own_image, environment="tank_simulation:Tank"))
    workplace.steppe("experiment", "start", "-e", "typo", "-c", "testbed", "--detach")
    reason = workplace.wait_for("typo", "failed")["reason"]
    assert reason.startswith(
        'workers cannot make the environment: environment "tank_simulation:Tank" names the module "tank_simulation", '
        "which is not there"
    )


def test_evaluations_need_the_environment_in_the_drivers_image(workplace: Workplace, own_image: str):
    workplace.new("judged", **fields_of(own_image, evaluation={"episodes": 1, "every": 1_000}))
    workplace.steppe("experiment", "start", "-e", "judged", "-c", "testbed", "--detach")
    reason = workplace.wait_for("judged", "failed")["reason"]
    assert "the driver's image does not have the environment that evaluation plays in" in reason
    assert "kubernetes.driver.image" in reason
