"""A worker in a Pod that hangs before it has joined its learner; the Pod sees it, whatever the worker is stuck in."""

from __future__ import annotations

import pytest
from processes import wait_until

from steppe.platforms.kubernetes import crew, pod
from steppe.runners.asynchronous.words import not_made_within
from steppe.specs.environment import EnvironmentSpec

STUCK = """
import ctypes

def make():
    ctypes.PyDLL(None).pause()  # as a simulator's own code may: no thread of Python gets to run
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Begins a worker with an environment of that module."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "learner").write_text("secret-of-the-learner")
    monkeypatch.setattr(pod, "TOKENS", str(tmp_path / "tokens"))
    # Nobody listens there, so that whoever has made its environment looks for a learner.
    monkeypatch.setenv("STEPPE_POD_HEAD", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    begun = []

    def begin(module):
        (tmp_path / "own_world.py").write_text(module)
        environment = EnvironmentSpec.model_validate("own_world:make").model_dump(mode="json")
        plan = {"environment": environment, "num_envs": 1, "max_timesteps": None, "repeat_actions": 1}
        begun.append(crew.Worker({"certificate": None, **plan}))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()
        assert each.process.returncode is not None


def test_one_that_hangs_while_it_makes_its_environment_is_stuck(worker):
    stuck = worker(STUCK)
    wait_until(lambda: stuck.is_stuck(0.5), "the worker is stuck", seconds=60)
    assert not stuck.is_stuck(3600.0)
    assert stuck.process.poll() is None


def test_one_that_has_made_its_environment_is_not(worker):
    waiting = worker("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    wait_until(lambda: waiting.is_stuck(3600.0) or waiting._has_made, "the environment is made", seconds=60)
    assert not waiting.is_stuck(0.0)
    assert waiting.process.poll() is None


def test_the_learner_hears_of_it(worker, monkeypatch):
    heard = []
    monkeypatch.setattr("steppe.runners.asynchronous.link.decline", lambda door, *words: heard.append((door, words)))
    crew._say_stuck({"certificate": None}, 300.0)
    ((door, words),) = heard
    assert (door.address, door.token) == ("127.0.0.1:8471", "secret-of-the-learner")
    assert words == ("fault", not_made_within(300.0))
