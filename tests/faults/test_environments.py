"""Environments that fail during a training, and losses that become NaN or infinite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from processes import DIED, SMALL, TINY, Answer, Run, Steppe

from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest

FAULTY = '''
import os, signal
import gymnasium, numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    """Fails in its 100th step, which is in the 7th iteration of 4 environments with 16 timesteps an iteration."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault):
        self.fault, self.total = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        self.total += 1
        obs, reward = self._observe(), float(action)
        if self.total == 100:
            match self.fault:
                case "raise":
                    raise RuntimeError("the engine is on fire")
                case "leave":
                    raise SystemExit(0)
                case "exit":
                    os._exit(7)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "nan":
                    obs[1] = float("nan")
                case "reward":
                    reward = float("nan")
                case "word":
                    reward = "much"
                case "shape":
                    obs = obs[:2]
                case "huge":
                    reward = 1e30
        return obs, reward, self.total % 20 == 0, False, {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)
'''
WAY_OUT = "correct the environment, then resume from the last checkpoint"
SENTENCES = {
    "raise": "raised RuntimeError: the engine is on fire",
    "leave": "raised SystemExit: 0",
    "nan": "returned an observation with nan in it",
    "reward": "returned the reward nan",
    "word": "returned the reward 'much'",
    "shape": "returned an observation of shape (2,) where its space says (3,)",
}
RAISING = {SENTENCES["raise"]: 'raise RuntimeError("the engine is on fire")', SENTENCES["leave"]: "raise SystemExit(0)"}
"""The sentence about an exception -> the line that raised it."""
LEARNED = 6 * 64
"""The timesteps of the six complete iterations before the fault."""


@pytest.fixture
def break_with(steppe: Steppe, module: Callable[[str, str], None]) -> Callable[..., tuple[Answer, Run]]:
    """Trains in an environment with a fault; returns the command's answer and the run."""
    module("broken_world", FAULTY)

    def train(fault: str, vectorization: str = "sync", *flags: str) -> tuple[Answer, Run]:
        settings = ("--set", f"environment.settings={json.dumps({'fault': fault})}")
        settings += ("--set", f"environment.vectorization={vectorization}")
        answer = steppe("train", "broken_world:Faulty", *SMALL, *settings, "-t", "2000", "-n", "first", *flags)
        return answer, steppe.run("first")

    return train


def assert_named(answer: Answer, run: Run, fault: str) -> None:
    """One sentence names the environment and the step, is also the run's reason, and no complete iteration is lost."""
    where = hint = ""
    if fault in RAISING:
        file = run.path.parents[2] / "modules" / "broken_world.py"
        line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if RAISING[fault] in text)
        where, hint = f" ({file}, line {line}, in step)", " (--debug shows the whole traceback)"
        assert f"line {line}, in step\n    {RAISING[fault]}" in (run.path / "log.txt").read_text()
    sentence = f'environment "broken_world:Faulty" (number 0) at step 100: {fault}{where}; {WAY_OUT}{hint}'
    assert (answer.code, answer.err) == (1, f"error: {sentence}\n")
    assert (run.state, run.status["reason"]) == ("failed", sentence)
    assert run.checkpoints == [0, LEARNED]
    checkpoint = load_latest(run.path)
    assert checkpoint.manifest["update"] == 6 * 4
    assert all(np.isfinite(array).all() for array in checkpoint.arrays.values() if array.dtype.kind == "f")
    assert load_policy(run.path / "policy").description.timestep == LEARNED
    assert "\n  steppe experiment resume -e first\n" in answer.out
    assert 'class="state bad">failed<' in (run.path / "report.html").read_text()


def test_an_environment_that_raises_is_named_with_its_step(break_with: Callable[..., tuple[Answer, Run]]) -> None:
    assert_named(*break_with("raise"), SENTENCES["raise"])


@pytest.mark.faults
@pytest.mark.parametrize("fault", [fault for fault in SENTENCES if fault != "raise"])
def test_an_environment_that_returns_invalid_values_is_named(
    break_with: Callable[..., tuple[Answer, Run]], fault: str
) -> None:
    assert_named(*break_with(fault), SENTENCES[fault])


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_fault_in_a_worker_process_is_reported_like_any_other(
    break_with: Callable[..., tuple[Answer, Run]], fault: str
) -> None:
    assert_named(*break_with(fault, "processes"), SENTENCES[fault])


@pytest.mark.faults
@pytest.mark.parametrize(("fault", "code"), [("exit", 7), ("kill", -9)])
def test_a_worker_process_that_dies_is_named(
    break_with: Callable[..., tuple[Answer, Run]], fault: str, code: int
) -> None:
    answer, run = break_with(fault, "processes")
    assert answer.code == 1
    assert re.fullmatch(
        rf'error: environment "broken_world:Faulty" at step 100: its worker process \d+ ended with code {code}; '
        r"correct the environment \(or give it more memory\), then resume from the last checkpoint\n",
        answer.err,
    )
    assert (run.state, run.checkpoints) == ("failed", [0, LEARNED])


@pytest.mark.faults
def test_an_environment_that_ends_the_process_loses_only_unsaved_work(
    break_with: Callable[..., tuple[Answer, Run]], steppe: Steppe
) -> None:
    answer, run = break_with("exit", "sync", "--saver-frequency", "128t")
    assert answer.code == 7
    row = steppe.listed("first")
    assert (row["state"], row["reason"]) == ("failed", DIED)
    assert run.checkpoints[-1] == LEARNED
    assert load_latest(run.path).skipped == []


@pytest.mark.faults
def test_a_run_resumes_with_a_corrected_environment(
    break_with: Callable[..., tuple[Answer, Run]], steppe: Steppe, module: Callable[[str, str], None]
) -> None:
    _, run = break_with("raise")
    module("broken_world", FAULTY.replace('raise RuntimeError("the engine is on fire")', "pass"))
    answer = steppe("experiment", "resume", "-e", "first")
    assert (answer.code, run.state) == (0, "completed"), answer.err
    assert "note: the environments start new episodes" in answer.out
    assert f"resumed at timestep {LEARNED}" in run.log


@pytest.mark.faults
@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_a_huge_learning_rate_ends_the_run_with_the_last_good_checkpoint(steppe: Steppe, backend: str) -> None:
    huge = ("--set", "agent.learning_rate=1e30", "--set", "agent.max_gradient_norm=null")
    on_backend = ("--set", f"environment.backend={backend}")
    answer = steppe("train", *TINY, *huge, *on_backend, "-t", "2000", "-n", "first", "--saver-frequency", "64t")
    assert_diverged(answer, steppe.run("first"), at=64, good=0)


@pytest.mark.faults
def test_a_huge_reward_ends_the_run_with_the_last_good_checkpoint(
    break_with: Callable[..., tuple[Answer, Run]],
) -> None:
    assert_diverged(*break_with("huge", "sync", "--saver-frequency", "64t"), at=LEARNED + 64, good=LEARNED)


def assert_diverged(answer: Answer, run: Run, *, at: int, good: int) -> None:
    """The error is one sentence, and the last checkpoint and the policy hold finite numbers only."""
    assert answer.code == 1
    assert answer.err.startswith(
        f"error: the loss became NaN or infinite at timestep {at}; the last good checkpoint is of timestep {good}"
    )
    assert answer.err.count("\n") == 1
    assert (run.state, run.status["reason"]) == ("failed", answer.err.removeprefix("error: ").rstrip())
    checkpoint = load_latest(run.path)
    assert (checkpoint.timestep, checkpoint.skipped) == (good, [])
    assert all(np.isfinite(array).all() for array in checkpoint.arrays.values() if array.dtype.kind == "f")
    policy = load_policy(run.path / "policy")
    assert policy.description.timestep == good
    assert all(np.isfinite(tensor).all() for tensor in policy.tensors.values())
