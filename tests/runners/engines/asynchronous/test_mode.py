"""Run mode async in experiments: workers that Ray places, and replaces if they die or hang; and refused settings."""

from __future__ import annotations

import json
import logging
import os
import signal
import time

import pytest
from coded_policies import write_module
from demonstrated import made_up_file
from processes import wait_until
from ray_processes import alive, descendants, named
from runs import TINY_PPO, experiment, train

from steppe import agents, runners
from steppe.errors import MissingExtra, UserError
from steppe.runners.engines import asynchronous
from steppe.specs.spaces import Box, Discrete
from steppe.tracking.metrics import read_metrics

DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 200, "n_step": 1, "memory": {"capacity": 2000}}
DQN |= {"exploration": {"type": "epsilon_anneal", "timesteps": 1000}}


def mode(agent=DQN, environment="worlds:World", **fields):
    fields = {"num_workers": 2, "num_envs": 1, "network": [{"type": "dense", "size": 16}]} | fields
    return experiment(environment, agent, run_mode="async", **fields)


def workers():
    """The process ids of this process's workers."""
    return [pid for pid, _ in descendants(os.getpid()) if named(pid).startswith("ray::WorkerActor")]


@pytest.fixture(autouse=True)
def family():
    """Processes that a test has seen; afterwards they and all other descendants must have ended."""
    before = {pid for pid, _ in descendants(os.getpid())}
    seen = set()
    yield seen
    left = {each for each in seen | descendants(os.getpid()) if each[0] not in before}
    wait_until(lambda: not alive(left), "all processes have ended")


def test_workers_of_ones_own_play_by_the_rules_of_the_experiment_that_they_join():
    for fields, rules in (({"max_timesteps_per_episode": 7, "repeat_actions": 2}, (7, 2)), ({}, (1000, 1))):
        engine = asynchronous.make_engine(mode(**fields))
        engine.close()
        assert (engine.core.task.max_timesteps, engine.core.task.repeat_actions) == rules


@pytest.mark.faults
def test_workers_are_placed_and_replaced_when_they_are_killed_or_hang(tmp_path, family):
    run, killed, replaced = tmp_path / "run", [], []

    def show(progress):
        # The hanging worker has been replaced.
        if progress.metrics.get("workers") == 2 and progress.metrics["lost"] and not killed:
            family.update(descendants(os.getpid()))
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    def request():
        lines = read_metrics(run)
        if killed and not replaced and len(living := workers()) == 2 and killed[0] not in living:
            replaced.append(len(lines))
        is_whole = replaced and len(lines) > replaced[0] + 2 and lines[-1].get("workers") == 2
        # The limit is higher than below, since the return may fall a little after the last line.
        return "stop" if is_whole and lines[-1]["mean_return"] > 8.5 else None

    environment = {"id": "troubled:Hangs", "settings": {"folder": str(tmp_path)}}
    wishes = {"update_to_data": 0.25, "worker_timeout": 5.0}
    spec = mode(environment=environment, total_timesteps=10**7, summary_frequency="200t", asynchronous=wishes)
    outcome = train(run, spec, request=request, show=show)
    assert (tmp_path / "hangs").exists()
    assert (outcome.state, outcome.reason) == ("stopped", "asked to stop")
    assert outcome.mean_return > 8.0


@pytest.mark.faults
def test_a_worker_that_hangs_while_its_environment_is_made_is_replaced(tmp_path, family):
    environment = {"id": "troubled:HangsAtStart", "settings": {"folder": str(tmp_path), "here": os.getpid()}}
    # The replacement has the same time to start, and must not be given up as well.
    spec = mode(environment=environment, num_workers=1, total_timesteps=500, asynchronous={"worker_timeout": 15.0})
    outcome = train(tmp_path / "run", spec, show=lambda _: family.update(descendants(os.getpid())))
    assert (tmp_path / "hangs").exists()
    assert outcome.state == "completed"


WATCHED = """
import json, os, sys
from pathlib import Path
from worlds import World

class Watched(World):
    taken = 0

    def __init__(self, folder):
        self.folder = Path(folder)

    def step(self, action):
        self.taken += 1
        # By then it has acted by a policy that was learned, and sent batches.
        if self.taken == 300:
            (self.folder / f"{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
        return super().step(action)
"""


def test_the_process_of_a_worker_that_ray_starts_imports_neither_jax_nor_flax(tmp_path, family, monkeypatch):
    (tmp_path / "watched_world.py").write_text(WATCHED)
    monkeypatch.syspath_prepend(tmp_path)
    seen = tmp_path / "seen"
    seen.mkdir()
    environment = {"id": "watched_world:Watched", "settings": {"folder": str(seen)}}
    spec = mode(environment=environment, num_workers=1, total_timesteps=600, asynchronous={"evaluation_share": 0.0})
    outcome = train(tmp_path / "run", spec, show=lambda _: family.update(descendants(os.getpid())))
    assert outcome.update > 0
    (file,) = seen.iterdir()
    assert file.stem != str(os.getpid())
    modules = set(json.loads(file.read_text()))
    assert {"ray", "steppe.runners.engines.asynchronous.worker.ray_actor", "steppe.policies.policy"} <= modules
    assert not {"jax", "jaxlib", "flax", "optax", "torch", "tensorboardX", "safetensors"} & modules


NOISY = """
import logging
from worlds import World

class Noisy(World):
    def __init__(self):
        print("the simulator loads")

    def reset(self, **options):
        logging.getLogger("simulator").warning("a warning of the simulator")
        return super().reset(**options)
"""


def test_output_and_warnings_of_workers_are_in_the_runs_log(tmp_path, family, monkeypatch, caplog):
    (tmp_path / "noisy_world.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    spec = mode(environment="noisy_world:Noisy", total_timesteps=10**7)
    wanted = {
        f"worker {number}: {line}"
        for number in (0, 1)
        for line in ("the simulator loads", "a warning of the simulator")
    }
    deadline = time.monotonic() + 120

    def seen_by_workers():
        return wanted & {record.getMessage() for record in caplog.records}

    def request():
        return "stop" if seen_by_workers() == wanted or time.monotonic() > deadline else None

    with caplog.at_level(logging.INFO, "steppe"):
        train(tmp_path / "run", spec, request=request, show=lambda _: family.update(descendants(os.getpid())))
    assert seen_by_workers() == wanted


REFUSED = {
    "an agent that learns from its own newest policy": (lambda: mode(TINY_PPO), 'agent "ppo" .* use "impala"'),
    "an agent that learns nothing": (lambda: mode("random"), 'agent "random" learns nothing'),
    "rollouts of episodes": (
        lambda: mode({"type": "impala", "rollout_episodes": 3}, max_timesteps_per_episode=10),
        r"give agent\.horizon",
    ),
    "a compiled environment": (
        lambda: mode(environment={"id": "CartPole-v1", "backend": "compiled"}),
        'leave out "backend": "compiled"',
    ),
    "an environment without a gymnasium original": (lambda: mode(environment="GridWorld-v0"), "only runs compiled"),
    "a door without a lock": (
        lambda: mode(asynchronous={"address": "0.0.0.0:6379"}),
        r"asynchronous\.token_file or STEPPE_LEARNER_TOKEN",
    ),
    "a token that is nowhere": (lambda: mode(asynchronous={"token_file": "nowhere"}), "cannot read the token"),
    "a memory that workers do not send": (
        lambda: mode({"type": "impala"}, network=[{"type": "lstm", "size": 4}]),
        r"agent\.share_network",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_unsuitable_experiments_are_refused_before_they_start(refused, monkeypatch):
    monkeypatch.delenv("STEPPE_LEARNER_TOKEN", raising=False)
    make, words = REFUSED[refused]
    with pytest.raises(UserError, match=words):
        runners.check(make())


@pytest.mark.parametrize(
    ("agent", "wishes", "words"),
    [
        ("impala", {"update_to_data": 1.0}, "update_to_data has no effect"),
        ("impala", {"batch_timesteps": 10}, "batch_timesteps has no effect"),
        ("dqn", {"trajectories_per_update": 4}, "trajectories_per_update has no effect"),
        ({"type": "dqn", "noisy": True}, {}, "workers play no greedy episodes"),
    ],
)
def test_settings_without_effect_are_noticed(agent, wishes, words):
    (notice,) = asynchronous.checked_engine(mode(agent, asynchronous=wishes))[1]
    assert words in notice


def test_parameter_servers_are_of_another_run_mode():
    (notice,) = asynchronous.checked_engine(mode(num_parameter_servers=2))[1]
    assert notice == 'num_parameter_servers has no effect in run mode "async", which has one learner'


def test_slow_networks_are_noticed():
    network = [{"type": "conv2d", "size": 4, "stride": 2}, {"type": "flatten"}, {"type": "dense", "size": 8}]
    (notice,) = asynchronous.checked_engine(mode(environment="worlds:Pictures", network=network))[1]
    assert "workers act in NumPy" in notice


CHOOSES, PUSHES = "worlds:World", "worlds:Continuous"
LEARNS_HERE = dict.fromkeys(("impala", "dqn", "ddqn", "dqn_nstep", "dqfd", "qr_dqn"), CHOOSES)
LEARNS_HERE |= dict.fromkeys(("ddpg", "td3", "sac", "naf"), PUSHES)


@pytest.mark.parametrize("agent", agents.names())
def test_every_agent_runs_or_is_refused_in_one_sentence_with_a_way_out(agent):
    words = {"type": agent}
    if agent == "dqfd":
        words["demonstrations"] = made_up_file(Box((3,), (-1.0,), (1.0,)), Discrete(2))
    spec = mode(words, LEARNS_HERE.get(agent, CHOOSES))
    if agent in LEARNS_HERE:
        assert asynchronous.checked_engine(spec)[1] == []
        return
    with pytest.raises(UserError, match=rf'^agent "{agent}" learns .*; use [^.\n]*$'):
        asynchronous.checked_engine(spec)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(asynchronous, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[cluster\]"'):
        asynchronous.checked_engine(mode())


def test_workers_of_a_run_may_import_the_layers_of_its_own_spec(tmp_path, family, monkeypatch):
    marker = write_module(tmp_path, "runs_layer")
    monkeypatch.syspath_prepend(tmp_path)
    network = [{"type": "runs_layer:Layer"}, {"type": "dense", "size": 8}]
    spec = mode(num_workers=1, total_timesteps=400, network=network, asynchronous={"evaluation_share": 0.0})
    outcome = train(tmp_path / "run", spec, show=lambda _: family.update(descendants(os.getpid())))
    assert outcome.update > 0
    assert marker.exists()
