"""A worker needs neither JAX nor Ray, reconnects, and reports in one sentence why it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from coded_policies import describe_coded, write_module
from ports import free_port
from processes import wait_until
from servers import Line, array, scripted
from worlds import World

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, ModuleNotAllowed, SteppeError, UserError
from steppe.runners.engines.asynchronous import AsyncWorker
from steppe.runners.engines.asynchronous.wire.protocol import MOST_LINES
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker import connection
from steppe.runners.engines.asynchronous.worker.async_worker import work
from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress, LearnerLost
from steppe.runners.engines.asynchronous.worker.given_environment import environment_of

SUPPORT = Path(__file__).parents[4] / "support"


@pytest.fixture(autouse=True)
def _time_for_last_words(monkeypatch):
    """Gives the answer to a worker's last message enough time on a slow machine."""
    monkeypatch.setattr(connection, "LEAVE_SECONDS", 60.0)


class Zeros:
    """A user's policy that always takes action 0."""

    def __init__(self):
        self.seen = []

    def act(self, observations, greedy):
        return np.zeros(len(observations), int)

    def set_weights(self, weights):
        self.seen.append(float(weights["w"]))


def greet(line: Line, session="first", **task):
    """Welcomes a worker."""
    assert line.read()["op"] == "hello"
    line.write({"op": "proceed"})
    joining = line.read()
    assert joining["op"] == "join"
    told = Task(least=20, most=20, **task).to_json()
    line.write({"op": "welcome", "session": session, "number": 0, "seed": [1, 0], "task": told})
    return joining


def news(op, version=0, weight=None):
    policy = {} if weight is None else {"policy": {"w": array(weight)}}
    return {"op": op, "version": version, "timestep": 0, "exploration": {}} | policy


def working(address, **options):
    return AsyncWorker(address, World, policy=options.pop("policy", Zeros()), **({"reconnect": 10.0} | options))


def test_it_fetches_collects_sends_and_ends_when_it_is_over():
    messages = []

    def script(line):
        greet(line)
        messages.append(line.read())
        line.write(news("news", 3, 0.5))
        messages.append(line.read())
        line.write(news("taken", 3))
        messages.append(line.read())
        line.write(news("dropped", 4, 0.75))
        line.read()
        line.write({"op": "over", "message": "all is learned"})

    policy = Zeros()
    with scripted(script) as address:
        assert working(address, policy=policy).work() == 60
    fetch, first, second = messages
    assert (fetch["op"], fetch["has"]) == ("fetch", -1)
    assert (first["op"], first["sequence"], first["version"], first["has"]) == ("batch", 1, 3, 3)
    assert first["lengths"] == [10, 10]
    assert second["sequence"] == 2
    assert policy.seen == [0.5, 0.75]


class Falling(World):
    """An environment that fails in its first step."""

    def step(self, action):
        raise RuntimeError("the wing has fallen off")


def test_output_is_forwarded_at_the_start_and_before_a_failure():
    messages = []

    def script(line):
        greet(line)
        line.read()
        line.write(news("news", 0, 1.0))
        while (message := line.read())["op"] != "leave":
            messages.append(message)
            line.write({"op": "noted"})

    printed = iter([[(20, "the simulator loads")], [(99, "the wing has \udc80 fallen off")]])
    failing = GymnasiumEnvs(environment_of(Falling, 1), 1)
    with scripted(script) as address, pytest.raises(EnvironmentFault):
        work(LearnerAddress(address, reconnect=10.0), lambda: failing, Zeros(), take_lines=lambda: next(printed))
    assert messages[0] == {"op": "said", "lines": [[20, "the simulator loads"]]}
    assert (messages[1]["op"], messages[1]["lines"][0]) == ("said", [50, "the wing has ? fallen off"])
    assert messages[-1]["op"] == "fault"


def test_a_broken_connection_is_made_again_and_the_batch_sent_again():
    joins, batches = [], []

    def breaks(line):
        joins.append(greet(line))
        line.read()
        line.write(news("news", 0, 1.0))
        batches.append(line.read())

    def goes_on(line):
        joins.append(greet(line))
        batches.append(line.read())
        line.write(news("taken"))
        batches.append(line.read())
        line.write({"op": "over", "message": "done"})

    with scripted(breaks, goes_on) as address:
        assert working(address).work() == 40
    assert joins[0] == joins[1]
    assert batches[0] == batches[1]
    assert [batch["sequence"] for batch in batches] == [1, 1, 2]


def test_another_learner_with_the_same_task_gets_the_batch_and_sends_its_own_policy():
    batches = []

    def dies(line):
        greet(line)
        line.read()
        line.write(news("news", 5, 1.0))
        line.read()

    def resumed(line):
        greet(line, session="second")
        batches.append(line.read())
        line.write(news("taken", 5, 2.0))
        batches.append(line.read())
        line.write({"op": "over", "message": "done"})

    policy = Zeros()
    with scripted(dies, resumed) as address:
        working(address, policy=policy).work()
    # The worker has version 5, but from the dead learner.
    assert [(batch["has"], batch["session"]) for batch in batches] == [(5, "first"), (5, "second")]
    assert policy.seen == [1.0, 2.0]


def test_a_worker_starts_again_for_another_task():
    sizes = []

    def dies(line):
        greet(line)
        line.read()
        line.write(news("news", 0, 1.0))
        line.read()

    def other(line):
        assert line.read()["op"] == "hello"
        line.write({"op": "proceed"})
        line.read()
        told = Task(least=8, most=8).to_json()
        line.write({"op": "welcome", "session": "second", "number": 3, "seed": [1, 0], "task": told})
        assert line.read()["op"] == "fetch"
        line.write(news("news", 0, 1.0))
        sizes.append(line.read()["timesteps"])
        line.write({"op": "over", "message": "done"})

    with scripted(dies, other) as address:
        assert working(address).work() == 28
    assert sizes == [8]


def test_a_last_word_right_behind_an_answer_is_understood():
    def script(line):
        greet(line)
        line.read()
        from servers import frame

        line.sock.sendall(frame(news("news", 0, 1.0)) + frame({"op": "over", "message": "done"}))
        with contextlib.suppress(ConnectionError):
            line.read()

    with scripted(script) as address:
        assert working(address).work() <= 20


def test_it_hears_that_it_is_over_while_it_collects_and_shows_that_it_lives(monkeypatch):
    from steppe.runners.engines.asynchronous.worker import async_worker

    monkeypatch.setattr(async_worker, "ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(async_worker, "LISTEN_SECONDS", 0.01)
    messages_seen = []

    class Slow(World):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    def script(line):
        greet(line)
        line.read()
        line.write(news("news", 0, 1.0))
        for _ in range(3):
            messages_seen.append(line.read()["op"])
            line.write({"op": "noted"})
        line.write({"op": "over", "message": "done"})
        with contextlib.suppress(ConnectionError):
            line.read()

    with scripted(script) as address:
        AsyncWorker(address, Slow, policy=Zeros()).work()
    assert messages_seen[0] == "alive"


def test_a_learner_that_is_nowhere_is_looked_for_and_then_given_up():
    port = free_port()
    started = time.monotonic()
    with pytest.raises(LearnerLost) as error:
        working(f"127.0.0.1:{port}", reconnect=0.5).work()
    assert 0.5 <= time.monotonic() - started < 60
    assert str(error.value) == (
        f"the learner at 127.0.0.1:{port} could not be reached within 0.5 s (connection refused); see that it runs and "
        "listens there, with TLS on both sides or on none, then start this worker again"
    )


ANSWERS = {
    "token": ({"kind": "token", "message": "a token is needed"}, UserError, "refuses the token.*STEPPE_LEARNER_TOKEN"),
    "version": (
        {"kind": "version", "message": "", "version": 2},
        UserError,
        "speaks version 2 of the protocol and this Steppe version 1",
    ),
    "user": ({"kind": "user", "message": "no"}, UserError, "says: no"),
    "fault": ({"kind": "fault", "message": "broken"}, SteppeError, "says: broken"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_refusal_of_the_learner_is_raised_at_once(answer):
    message, kind, words = ANSWERS[answer]

    def script(line):
        line.read()
        line.write({"op": "error", **message})

    with scripted(script) as address, pytest.raises(kind, match=words):
        working(address).work()


@pytest.mark.parametrize(
    "babble", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1\xc1", b"\0\0\0\3\x93\1\2", b"\xff" * 100]
)
def test_a_server_that_is_no_learner_is_an_error(babble):
    with (
        scripted(lambda line: (line.read(), line.sock.sendall(babble))) as address,
        pytest.raises(SteppeError, match='does not speak version 1 of the protocol "steppe-async"'),
    ):
        working(address).work()


@pytest.mark.parametrize("change", [{"seed": "x"}, {"task": 3}, {"number": -1}, {"session": None}])
def test_a_welcome_that_makes_no_sense_is_no_learners(change):
    def script(line):
        line.read()
        line.write({"op": "proceed"})
        line.read()
        told = {"session": "s", "number": 0, "seed": [1], "task": Task().to_json()}
        line.write({"op": "welcome", **told, **change})

    with scripted(script) as address, pytest.raises(SteppeError, match="does not speak version 1"):
        working(address).work()


def test_an_environment_error_is_reported_to_the_learner_and_raised():
    told = []

    class Fails(World):
        def step(self, action):
            raise ValueError("the simulator has crashed")

    def script(line):
        greet(line)
        line.read()
        line.write(news("news", 0, 1.0))
        while (message := line.read())["op"] != "leave":
            told.append(message)
            line.write({"op": "noted"})
        line.write({"op": "bye"})

    with scripted(script) as address, pytest.raises(EnvironmentFault, match="the simulator has crashed"):
        AsyncWorker(address, Fails, policy=Zeros()).work()
    *said, fault = told
    assert (fault["op"], "the simulator has crashed" in fault["message"]) == ("fault", True)
    assert {message["op"] for message in said} == {"said"}
    assert all(len(message["lines"]) <= MOST_LINES for message in said)
    lines = [text for message in said for _, text in message["lines"]]
    assert lines[0] == "Traceback (most recent call last):"
    assert 'raise ValueError("the simulator has crashed")' in lines[-2]
    assert lines[-1] == "ValueError: the simulator has crashed"


def test_a_learner_with_a_policy_of_its_own_kind_needs_one_here_too():
    def script(line):
        greet(line)
        line.read()
        line.write({"op": "noted"})

    with scripted(script) as address, pytest.raises(UserError, match=r"give this worker one to act with"):
        AsyncWorker(address, World).work()


@pytest.mark.parametrize("address", ["learner", "learner:0", "learner:port", ":6379"])
def test_a_wrong_address_is_named(address):
    with pytest.raises(UserError, match=r'wrong learner_address ".*"; an address is written "host:port"'):
        AsyncWorker(address, World)


def test_environments_come_as_names_classes_callables_and_objects():
    env = World()
    for given in ("worlds:World", {"id": "worlds:World"}, World, lambda: World(), env):
        from steppe.envs.gymnasium.vector import GymnasiumEnvs

        with GymnasiumEnvs(environment_of(given, 1), 1) as envs:
            assert envs.reset(0).shape == (1, 3)
    with pytest.raises(UserError, match="give a callable that makes a new one"):
        environment_of(env, 2)
    with pytest.raises(UserError, match=r"must be a gymnasium\.Env"):
        environment_of(3, 1)


def test_an_object_keeps_the_wrappers_and_time_limit_it_has():
    env = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 7)
    from steppe.envs.gymnasium.vector import GymnasiumEnvs

    with GymnasiumEnvs(environment_of(env, 1), 1) as envs:
        envs.reset(0)
        assert [bool(envs.step(np.array([t % 2])).truncated[0]) for t in range(7)] == [False] * 6 + [True]


PROGRAM = """
import json, sys
from steppe import AsyncWorker
taken = AsyncWorker(sys.argv[1], "worlds:World", num_envs=2).work()
print(json.dumps([taken, sorted(sys.modules)]))
"""


def test_a_worker_imports_neither_jax_nor_flax_nor_ray_on_its_way(tmp_path):
    from crews import async_engine
    from runs import experiment

    from steppe.runners._base import ChunkLimits

    agent = {"type": "ddpg", "learning_starts": 100, "batch_size": 16, "memory": {"capacity": 512}}
    agent["states_preprocessing"] = [{"type": "sequence", "length": 2}]
    agent["reward_preprocessing"] = [{"type": "clip", "min_value": -1.0, "max_value": 1.0}]
    network = [{"type": "dense", "size": 8}]
    spec = experiment("worlds:Continuous", agent, run_mode="async", num_envs=2, network=network)
    engine = async_engine(spec)
    engine._pool.count = 0
    process = None
    try:
        engine.begin(1)
        crew = engine._pool
        program = PROGRAM.replace("worlds:World", "worlds:Continuous")
        process = subprocess.Popen(
            [sys.executable, "-c", program, crew.address],
            env={"STEPPE_LEARNER_TOKEN": crew.token, "PYTHONPATH": f"{SUPPORT}:{':'.join(filter(None, sys.path))}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(
            lambda: engine.advance(1, 0, ChunkLimits()).iterations and engine.core.updates > 0, "it is learned from"
        )
    finally:
        engine.close()
        out = process.communicate(timeout=60)[0] if process else ""
    taken, modules = json.loads(out)
    assert taken > 100
    assert {"steppe.policies.policy", "gymnasium", "msgpack"} <= set(modules)
    heavy = {"jax", "jaxlib", "flax", "optax", "ray", "torch", "tensorboardX", "safetensors"}
    assert not heavy & set(modules)


class Endless(World):
    """An environment whose episodes never end."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        self.taken = getattr(self, "taken", 0) + 1
        return obs, reward, False, False, info


def first_batches(env, count=1, **task):
    """The first batches of a worker, of 20 timesteps each."""
    batches = []

    def script(line):
        greet(line, **task)
        line.read()
        line.write(news("news", 0, 1.0))
        for _ in range(count):
            batches.append(line.read())
            line.write(news("taken"))
        line.read()
        line.write({"op": "over", "message": "done"})

    with scripted(script) as address:
        AsyncWorker(address, env, policy=Zeros()).work()
    return batches


def test_episodes_are_cut_and_actions_repeated_as_the_learner_says():
    env = Endless()
    assert first_batches(env, max_timesteps=5, repeat_actions=3)[0]["lengths"] == [5, 5, 5, 5]
    assert env.taken == 2 * 20 * 3


def test_an_episode_without_an_end_is_cut_after_a_thousand_timesteps():
    batches = first_batches(Endless, 51, evaluation_share=1.0)
    assert [length for batch in batches for length in batch["lengths"]] == [1000]
    # Evaluation episodes are cut too, since the learner waits for their end.
    assert [length for _, length in batches[-1]["evaluations"]] == [1000]


def test_a_time_limit_of_the_environment_itself_is_not_shortened():
    batches = first_batches(gymnasium.wrappers.TimeLimit(Endless(), 1005), 51)
    assert [length for batch in batches for length in batch["lengths"]] == [1005]


def test_threads_of_one_process_may_each_be_a_worker():
    taken = []

    def script(line):
        greet(line)
        line.read()
        line.write(news("news", 0, 1.0))
        line.read()
        line.write({"op": "over", "message": "done"})

    with scripted(script, script) as address:
        threads = [threading.Thread(target=lambda: taken.append(working(address).work())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert taken == [20, 20]


def test_a_learner_cannot_make_a_worker_import_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker, messages_seen = write_module(tmp_path, "learners_layer"), []

    def script(line):
        greet(line, policy=describe_coded("learners_layer:Layer"))
        messages_seen.append(line.read())
        line.write({"op": "noted"})
        line.read()

    for allowed in ((), ("learners", "os")):
        with scripted(script) as address, pytest.raises(ModuleNotAllowed) as caught:
            working(address, allow_modules=allowed).work()
        assert f'the policy of the learner at {address} has the layer "learners_layer:Layer"' in str(caught.value)
        assert 'allow_modules="learners_layer"' in str(caught.value)
        assert (messages_seen[-1]["op"], messages_seen[-1]["message"]) == ("fault", str(caught.value))
    assert not marker.exists()


def test_a_worker_acts_with_layers_of_modules_that_its_user_allows(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    marker = write_module(tmp_path, "learners_layer")

    def script(line):
        greet(line, policy=describe_coded("learners_layer:Layer"))
        assert line.read()["op"] == "fetch"
        line.write({"op": "over", "message": "all is learned"})

    with scripted(script) as address:
        working(address, allow_modules="learners_layer").work()
    assert marker.exists()


def test_an_invalid_policy_is_an_error_of_one_sentence():
    def script(line):
        greet(line, policy={"network": 7})

    with scripted(script) as address, pytest.raises(SteppeError, match="sent a policy that cannot be understood"):
        working(address).work()
