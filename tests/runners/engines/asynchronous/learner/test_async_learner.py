"""`AsyncLearner` and `AsyncWorker` with Steppe's agents, and with the user's own policies and memories."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_policies import Table, torch_policy
from processes import wait_until
from worlds import World

from steppe.errors import UserError
from steppe.policies.policy import load_policy
from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.runners._base import Progress
from steppe.runners.engines.asynchronous import AsyncLearner, AsyncWorker, UniformReplay
from steppe.runners.engines.asynchronous.cores.own_core import RESERVED, OwnCore
from steppe.runners.engines.asynchronous.learner import progress_lines
from steppe.runners.engines.asynchronous.learner.progress_lines import ProgressLines
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.tracking.metrics import read_metrics

DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 200, "n_step": 1}
DQN |= {"exploration": {"type": "epsilon_anneal", "timesteps": 1000}}
LEAN = [{"type": "dense", "size": 16}]
SUPPORT = Path(__file__).parents[4] / "support"


def together(learner, workers, **options):
    """Runs a learner with workers in threads; returns its outcome."""
    errors = []
    core = learner._core

    def when_all_have_come(spaces):
        # A worker that connects after the learner's end would search for it for minutes.
        wait_until(lambda: errors or len(learner._server._sessions) >= len(workers), "all have come")
        return core(spaces)

    def work(policy):
        try:
            wait_until(lambda: learner.address, "it listens")
            AsyncWorker("{}:{}".format(*learner.address), World, policy=policy).work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(policy,)) for policy in workers]
    learner._core = when_all_have_come
    for thread in threads:
        thread.start()
    try:
        return learner.run(**options)
    finally:
        for thread in threads:
            thread.join(60)
        assert not errors
        assert not any(thread.is_alive() for thread in threads)


def test_an_agent_learns_from_any_worker_that_connects(tmp_path):
    learner = AsyncLearner(
        DQN, replay=2000, address="127.0.0.1:0", folder=tmp_path / "run", network=LEAN, total_timesteps=3000
    )
    outcome = together(learner, [None, None])
    assert (outcome.state, outcome.mean_return > 8.0) == ("completed", True)
    assert learner.spec.agent.settings["memory"] == {"capacity": 2000}
    policy = load_policy(tmp_path / "run" / "policy")
    assert [policy.act(np.full(3, sign, np.float32)) for sign in (-1, 1)] == [0, 1]


def test_a_learner_prints_its_progress(tmp_path, capsys):
    def learner(folder):
        fields = {"network": LEAN, "total_timesteps": 1000, "address": "127.0.0.1:0"}
        return AsyncLearner(DQN, 2000, folder=tmp_path / folder, **fields)

    together(told := learner("told"), [None])
    out, err = capsys.readouterr()
    first, second, *_, last = err.splitlines()
    assert (out, first) == ("", "listening for workers at {}:{}".format(*told.address))
    # There is one such line every ten seconds, and this run is shorter.
    assert re.fullmatch(
        r"[\d,]+ of 1,000 timesteps(, mean return [\d.]+)?, [\d,]+ timesteps/s, [\d,]+ updates/s, [01] workers, "
        r"0 batches dropped, 0 lost",
        second,
    )
    assert re.fullmatch(r"completed after 1,0\d\d timesteps: all 1,000 timesteps were run", last)
    together(learner("shown"), [None], on_progress=lambda progress: None)
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_went_away_does_not_end_the_learning(monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    ProgressLines(None)(Progress("training", 64))


def test_progress_lines_are_rare_and_notices_are_printed_once(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: now[0])
    lines = ProgressLines(None)
    for now[0] in (100.0, 103.0, 109.0, 110.0):
        lines(Progress("training", 64, mean_return=7.25, metrics={"workers": 2.0}, notices=("so it is",)))
    line = "64 timesteps, mean return 7.25, 0 timesteps/s, 0 updates/s, 2 workers, 0 batches dropped, 0 lost"
    assert capsys.readouterr().err.splitlines() == ["note: so it is", line, line]


def test_a_run_is_resumed_only_if_that_is_asked_for(tmp_path):
    def learner(timesteps):
        return AsyncLearner(DQN, 2000, address="127.0.0.1:0", folder=tmp_path, network=LEAN, total_timesteps=timesteps)

    together(learner(500), [None], resume="auto")
    first = list_checkpoints(tmp_path)[-1]
    with pytest.raises(UserError, match=r"there is a run in .* already; go on with run\(resume=True\)"):
        learner(1000).run()
    outcome = together(learner(1000), [None], resume="auto")
    assert outcome.timestep >= 1000 > first
    assert together(learner(1500), [None], resume=True).timestep >= 1500


@pytest.mark.parametrize("ratio", [0.25, "max"])
def test_a_policy_of_ones_own_learns(tmp_path, ratio):
    policy = Table()
    learner = AsyncLearner(
        policy,
        UniformReplay(2000, batch_size=32, least=100),
        address="127.0.0.1:0",
        folder=tmp_path,
        total_timesteps=4000,
        summary_frequency="1000t",
        asynchronous={"update_to_data": ratio, "evaluation_share": 0.1},
    )
    outcome = together(learner, [Table(1), Table(2)])
    assert outcome.mean_return > 8.0
    last = read_metrics(tmp_path)[-1]
    assert last["evaluation_return"] > 9.0
    assert last["loss"] < 0.3
    assert policy.learned == outcome.update
    assert set(last) - {"loss"} <= RESERVED
    if ratio == 0.25:
        assert outcome.update == pytest.approx(0.25 * outcome.timestep, rel=0.1)
    from safetensors.numpy import load_file

    np.testing.assert_allclose(
        load_file(tmp_path / "policy" / "weights.safetensors")["table"], policy.weights, rtol=1e-6
    )


@pytest.mark.parametrize("name", ["updates", "episodes", "timestep", "workers", "mean_return"])
def test_a_users_policy_cannot_overwrite_the_runs_own_metrics(tmp_path, name):
    class Counts(Table):
        def learn(self, batch):
            return super().learn(batch) | {name: 1e9}

    replay = UniformReplay(2000, batch_size=32, least=100)
    learner = AsyncLearner(Counts(), replay, address="127.0.0.1:0", folder=tmp_path, total_timesteps=4000)
    with pytest.raises(UserError, match=f'returns a metric "{name}", which the run counts itself; call it something'):
        together(learner, [Table(1)])


def test_the_docs_list_the_reserved_metric_names():
    page = (Path(__file__).parents[5] / "docs" / "run-modes" / "async.md").read_text()
    sentence = page.partition("`learn` may give its metrics any names but")[2].partition(".\n")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == RESERVED


def test_a_policy_of_ones_own_is_restored_with_its_memory(tmp_path):
    def learner(policy, timesteps):
        replay = UniformReplay(2000, batch_size=32, least=100)
        return AsyncLearner(policy, replay, address="127.0.0.1:0", folder=tmp_path, total_timesteps=timesteps), replay

    first, replay = learner(Table(), 1000)
    together(first, [Table(1)])
    policy = Table()
    second, restored = learner(policy, 1200)
    core = OwnCore(policy, restored, Task(), None)
    arrays = {name: array for name, array in load_latest(tmp_path).arrays.items() if not name.startswith("async/")}
    core.restore(arrays, 0)
    assert len(restored) == len(replay)
    assert core.updates == policy.learned > 0
    assert together(second, [Table(1)], resume=True).timestep >= 1200


def test_a_policy_in_pytorch_learns(tmp_path):
    pytest.importorskip("torch")
    learner = AsyncLearner(
        torch_policy(),
        UniformReplay(2000, batch_size=64, least=100),
        address="127.0.0.1:0",
        folder=tmp_path,
        total_timesteps=4000,
        asynchronous={"update_to_data": 0.25},
    )
    assert together(learner, [torch_policy(1), torch_policy(2)]).mean_return > 8.0


OWN_ALONE = """
import sys, threading
from own_policies import Table
from steppe import AsyncLearner, AsyncWorker, UniformReplay
memory = UniformReplay(500, 16, 50)
learner = AsyncLearner(Table(), memory, address="127.0.0.1:0", folder=sys.argv[1], total_timesteps=500)
running = threading.Thread(target=learner.run)
running.start()
while learner.address is None:
    pass
AsyncWorker("%s:%d" % learner.address, "worlds:World", policy=Table()).work()
running.join()
print(sorted({"jax", "flax", "ray"} & set(sys.modules)))
"""


def test_a_learner_with_a_policy_of_ones_own_needs_no_jax_either(tmp_path):
    paths = f"{SUPPORT}:{':'.join(filter(None, sys.path))}"
    words = [sys.executable, "-c", OWN_ALONE, str(tmp_path / "run")]
    answer = subprocess.run(words, env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False)
    assert (answer.stdout.strip(), answer.returncode) == ("[]", 0), answer.stderr


def test_stopping_saves_a_checkpoint(tmp_path):
    learner = AsyncLearner(DQN, 2000, address="127.0.0.1:0", folder=tmp_path, network=LEAN, total_timesteps=10**9)

    def seen(progress):
        if progress.timestep > 500:
            learner.stop()

    outcome = together(learner, [None], on_progress=seen)
    assert (outcome.state, list_checkpoints(tmp_path)[-1]) == ("stopped", outcome.timestep)


def test_stopping_before_the_first_worker_is_no_failure(tmp_path):
    learner = AsyncLearner(DQN, address="127.0.0.1:0", folder=tmp_path / "run")
    learner.stop()
    assert learner.run().reason == "asked to stop before the first worker came"
    assert not (tmp_path / "run").exists()


WRONG = {
    "a policy without learn": (lambda: AsyncLearner(object(), UniformReplay()), "policy is a object, which has no act"),
    "no memory": (lambda: AsyncLearner(Table()), "replay is None, which has no add.*such as UniformReplay"),
    "two memories": (lambda: AsyncLearner({"type": "sac", "memory": {}}, 100), "given twice"),
    "a memory of the wrong kind": (lambda: AsyncLearner("sac", UniformReplay()), "give how many timesteps are kept"),
    "a wrong address": (lambda: AsyncLearner("sac", address="learner"), 'wrong address "learner"'),
    "an unknown field": (lambda: AsyncLearner("sac", speed=3), "speed"),
    "a memory that can never be full enough": (lambda: UniformReplay(10, least=11), "lower least or raise capacity"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_named(wrong):
    make, words = WRONG[wrong]
    with pytest.raises(UserError, match=words):
        make()


NOT_HERE = {
    "evaluation": ({"every": 500}, "its workers play greedy episodes"),
    "video": (True, "film with the policy that it leaves"),
    "run_mode": ("single", 'it knows none but "async"'),
    "num_workers": (8, "takes in as many as come"),
    "num_parameter_servers": (2, "it holds all parameters itself"),
    "distributed": ({"synchronous": True}, 'for run mode "distributed"'),
    "ray": ({"cpus_per_worker": 2.0}, "it starts no processes"),
    "platform": ("kubernetes", "it starts no processes"),
    "asynchronous.address": ("127.0.0.1:7000", r"write AsyncLearner\(..., address=...\)"),
    "asynchronous.reconnect": (5.0, r"write AsyncWorker\(..., reconnect=...\)"),
}


@pytest.mark.parametrize("name", NOT_HERE)
def test_settings_that_a_learner_alone_cannot_go_by_are_refused(name):
    value, words = NOT_HERE[name]
    outer, _, inner = name.partition(".")
    with pytest.raises(UserError, match=f"an AsyncLearner cannot go by {name}: .*{words}"):
        AsyncLearner("sac", **{outer: {inner: value} if inner else value})


def test_a_default_that_is_written_out_is_no_mistake():
    learner = AsyncLearner("sac", num_workers=3, evaluation=None, asynchronous={"reconnect": 60.0})
    assert learner.spec.num_workers == 3


def test_listening_beyond_loopback_needs_a_token(tmp_path, monkeypatch):
    monkeypatch.delenv("STEPPE_LEARNER_TOKEN", raising=False)
    with pytest.raises(UserError, match="give a token by token_file or STEPPE_LEARNER_TOKEN"):
        AsyncLearner("sac", address="0.0.0.0:0", folder=tmp_path).run()
    monkeypatch.setenv("STEPPE_LEARNER_TOKEN", "short")
    with pytest.raises(UserError, match="has only 5 characters"):
        AsyncLearner("sac", address="0.0.0.0:0", folder=tmp_path).run()


def test_an_agent_that_cannot_learn_this_way_is_refused_when_the_first_worker_comes(tmp_path):
    learner = AsyncLearner("ppo", address="127.0.0.1:0", folder=tmp_path)
    with pytest.raises(UserError, match='agent "ppo" learns from what its newest policy does'):
        together(learner, [None])


def test_the_uniform_memory_keeps_the_newest_and_draws_from_all():
    replay = UniformReplay(10, batch_size=200, least=4)
    batch = {
        "observations": np.arange(6.0).reshape(3, 2, 1),
        "actions": np.arange(6).reshape(3, 2),
        "rewards": np.arange(6.0).reshape(3, 2),
        "terminated": np.zeros((3, 2), bool),
        "next_observations": 1 + np.arange(6.0).reshape(3, 2, 1),
    }
    replay.add({name: array[:1] for name, array in batch.items()})
    assert replay.sample() is None
    for offset in (0, 6, 12):
        replay.add({name: array + offset if array.dtype != bool else array for name, array in batch.items()})
    drawn = replay.sample()
    assert len(replay) == 10
    assert set(drawn["actions"]) == set(range(8, 18))
    np.testing.assert_array_equal(drawn["observations"][:, 0] + 1, drawn["next_observations"][:, 0])
    other = UniformReplay(10, batch_size=200, least=4)
    other.restore(replay.snapshot())
    assert set(other.sample()["actions"]) == set(range(8, 18))
    other.add({name: array[:1] for name, array in batch.items()})
    assert min(set(other.sample()["actions"]) - {0, 1}) == 10


@pytest.mark.parametrize("address", ["127.0.0.1:0", ("127.0.0.1", 0)], ids=["text", "a pair"])
def test_an_address_may_be_a_pair(address: Any, tmp_path: Path) -> None:
    learner = AsyncLearner("sac", address=address, folder=tmp_path / "run", total_timesteps=10)
    assert (learner._host, learner._port) == ("127.0.0.1", 0)


@pytest.mark.parametrize("address", [("127.0.0.1",), ("127.0.0.1", "6379"), (6379, "127.0.0.1"), 6379, None])
def test_an_invalid_address_is_refused_with_an_example(address: Any) -> None:
    for make in (lambda: AsyncLearner("sac", address=address), lambda: AsyncWorker(address, "CartPole-v1")):
        with pytest.raises(UserError, match=r'an address is written "host:port" or \(host, port\)'):
            make()


def test_a_worker_takes_the_address_that_a_learner_gives() -> None:
    worker = AsyncWorker(("::1", 4444), "CartPole-v1")
    assert worker._learner.address == "[::1]:4444"
