"""A learner in a Pod without the environment gets the spaces from its first worker."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from ports import free_port
from processes import wait_until
from runs import TINY_DQN, experiment

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentAway, EnvironmentFault, MissingEnvironment, UserError
from steppe.runners import pods
from steppe.runners.engines import asynchronous
from steppe.runners.engines.asynchronous.learner import pod_pool
from steppe.runners.engines.asynchronous.worker import async_worker
from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress
from steppe.runners.loop import TrainingLoop

TOKEN = "a-token-of-the-learner"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's Pod, simulated by this process: the file with the configuration of its workers."""
    monkeypatch.setattr(pod_pool, "LEARNER_PORT", free_port())
    monkeypatch.setattr(pod_pool, "TEND_SECONDS", 0.0)
    monkeypatch.setenv("STEPPE_LEARNER_TOKEN", TOKEN)
    monkeypatch.setenv(pods.CREW_FILE_VARIABLE, str(tmp_path / "crew.json"))
    return tmp_path / "crew.json"


def unknown_here(**fields):
    given = {"run_mode": "async", "num_workers": 1, "num_envs": 1, "platform": "kubernetes"} | fields
    return experiment("nowhere_installed:Tank", TINY_DQN, **given)


class Comer(threading.Thread):
    """A worker that joins as soon as possible."""

    def __init__(self, crew_file: Path, make_envs) -> None:
        super().__init__()
        self.crew_file, self.make_envs, self.error = crew_file, make_envs, None
        self.start()

    def run(self):
        wait_until(self.crew_file.exists, "the learner wants workers", seconds=60)
        self.plan = json.loads(self.crew_file.read_text())
        try:
            async_worker.work(LearnerAddress(f"127.0.0.1:{pod_pool.LEARNER_PORT}", TOKEN), self.make_envs)
        except Exception as error:
            self.error = error


def test_a_learner_trains_with_the_spaces_of_its_first_worker(pod, tmp_path):
    spec = unknown_here(total_timesteps=200)
    comer = Comer(pod, lambda: GymnasiumEnvs(experiment("CartPole-v1").environment, 1))
    engine = asynchronous.make_engine(spec)
    try:
        assert [space.shape for space in engine.core.spaces] == [(4,), ()]
        outcome = TrainingLoop(spec, engine, tmp_path, lambda: None, lambda progress: None).run(None)
    finally:
        engine.close()
        comer.join(60)
    assert (outcome.state, comer.error) == ("completed", None)
    assert comer.plan["plan"]["environment"]["id"] == "nowhere_installed:Tank"


def test_workers_that_have_it_not_either_end_the_run(pod):
    comer = Comer(pod, lambda: GymnasiumEnvs(unknown_here().environment, 1))
    with pytest.raises(UserError, match=r'^workers cannot make the environment: .*the module "nowhere_installed"'):
        asynchronous.make_engine(unknown_here())
    comer.join(60)
    assert isinstance(comer.error, MissingEnvironment)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("wrong settings"), [("user", "wrong settings")]),
        (EnvironmentFault("it broke"), [("fault", "it broke")]),
        (ZeroDivisionError(), [("fault", "ZeroDivisionError")]),
        # The simulator may still be starting.
        (EnvironmentAway("nobody listens yet"), []),
    ],
)
def test_a_worker_reports_why_it_has_no_environment(monkeypatch, error, told):
    reasons = []
    monkeypatch.setattr(async_worker, "decline", lambda learner, *words: reasons.append(words))

    def make_envs():
        raise error

    with pytest.raises(type(error)):
        async_worker.work(LearnerAddress("127.0.0.1:1"), make_envs)
    assert reasons == told


def test_elsewhere_a_missing_environment_is_an_error(monkeypatch):
    monkeypatch.delenv(pods.CREW_FILE_VARIABLE, raising=False)
    with pytest.raises(MissingEnvironment, match='the module "nowhere_installed", which is not there'):
        asynchronous.make_engine(unknown_here())


def test_evaluations_need_it_here(pod):
    with pytest.raises(UserError, match=r"that evaluation plays in: .*name an image that has it in kubernetes\.driver"):
        asynchronous.make_engine(unknown_here(evaluation={"episodes": 1, "every": 100}))
    assert not pod.exists()
