"""A learner in its own process continues to learn and keeps its checkpoint, whatever workers send."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
from collections import deque
from functools import reduce

import numpy as np
import pytest
from learner_process import HELLO, ROWS, LearnerProcess, batch, join, said

from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.runners.engines.asynchronous.learner.engine import _stored


@pytest.fixture
def learner(tmp_path):
    process = LearnerProcess(tmp_path / "run")
    yield process
    process.kill()


ODD = [
    {"lengths": [2147483648]},
    {"lengths": [-5]},
    {"lengths": ["64"]},
    {"lengths": [True]},
    {"returns": [1e308]},
    {"returns": [float("nan")]},
    {"returns": [True]},
    {"returns": ["5"]},
    {"evaluations": [[1e308, 2147483648]]},
    {"version": 2**64 - 1},
    {"sequence": 2**64 - 1},
]


def test_odd_figures_cost_a_worker_its_place_and_the_learner_nothing(learner, tmp_path):
    run = tmp_path / "run"
    with learner.line() as good:
        assert join(good, "good")["op"] == "welcome"
        for number, odd in enumerate(ODD, 1):
            with learner.line() as bad:
                assert join(bad, f"bad {number}")["op"] == "welcome"
                answer = said(bad, batch(1) | odd)
                assert (answer["op"], answer.get("kind")) == ("error", "protocol"), odd
                assert bad.sock.recv(1) == b""
            assert said(good, batch(number))["op"] == "taken"
        assert learner.terminate() == 0, learner.log
    # Batches that still waited at the end are in no checkpoint.
    assert list_checkpoints(run)[-1] >= ROWS
    arrays = load_latest(run).arrays
    assert set(arrays["async/lengths"].tolist()) == {ROWS}
    assert set(arrays["async/returns"].tolist()) == {5.0}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["mean_return"] == 5.0


@pytest.mark.parametrize(
    ("values", "dtype", "stored"),
    [
        ([2**31, -(2**31) - 1, 7, float("inf")], np.int32, [2**31 - 1, -(2**31), 7, 2**31 - 1]),
        ([2**64, 3], np.int64, [2**63 - 1, 3]),
        ([1e308, -1e308, float("nan"), 2.5], np.float32, [np.finfo(np.float32).max, np.finfo(np.float32).min, 0, 2.5]),
        ([], np.int32, []),
    ],
)
@pytest.mark.filterwarnings("error")
def test_no_figure_keeps_a_checkpoint_from_being_written(values, dtype, stored):
    array = _stored(deque(values), dtype)
    assert (array.dtype, array.tolist()) == (dtype, stored)


@pytest.fixture
def many_sockets():
    """Raises this process's limit of open sockets to that of an attacker."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silent_connections_keep_no_worker_out(learner, many_sockets):
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(learner.line())
        assert join(good, "good")["op"] == "welcome"
        for _ in range(2100):
            address = "127.0.0.1", learner.port
            stack.enter_context(socket.create_connection(address, 60, source_address=("127.0.0.2", 0)))
        for number in range(1, 21):
            with learner.line() as line:
                assert join(line, f"newcomer {number}")["op"] == "welcome"
                assert said(line, batch(1))["op"] == "taken"
            assert said(good, batch(number))["op"] == "taken"
        assert learner.threads < 60
    assert learner.log.count("cut before it had greeted") < 10
    assert learner.terminate() == 0, learner.log


def test_workers_that_come_all_at_once_are_all_let_in(learner):
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(learner.line()) for _ in range(200)]
        for line in lines:
            line.write(HELLO)
        assert all(line.read() == {"op": "proceed"} for line in lines)


EMPTY_LISTS = struct.pack(">BI", 0xDD, 3_999_990) + b"\x90" * 3_999_990
COSTLY = {
    "60 MB of empty lists": (60_000_000, b""),
    "4 MB of empty lists": (len(EMPTY_LISTS), EMPTY_LISTS),
    "lists that announce more than there is": (4_000_000, b"\xdd\x00\x3d\x09\x00" * 800_000),
    "short lists that announce much": (60_000, b"\xdd\x00\x00\xea\x60" * 12_000),
    "4 MB of short texts": (4_000_005, b"\xdd" + (1_333_333).to_bytes(4, "big") + b"\xa2ab" * 1_333_334),
    "deep lists": (4_000_000, b"\x91" * 4_000_000),
    "only a length": (4_000_000, b""),
}


def test_no_message_takes_much_more_memory_than_its_size(learner):
    with learner.line() as good:
        assert join(good, "good")["op"] == "welcome"
        before = learner.peak_megabytes
        for what, (length, body) in COSTLY.items():
            with learner.line() as bad:
                assert said(bad, HELLO) == {"op": "proceed"}
                bad.sock.sendall(struct.pack(">I", length) + body)
                if what == "only a length":
                    continue
                answer = bad.read()
                assert (answer["op"], answer["kind"]) == ("error", "protocol"), what
        assert learner.peak_megabytes - before < 60
        assert said(good, batch(1))["op"] == "taken"


def box(shape=(3,), low=(-1.0,), high=(1.0,), **more):
    return {"type": "box", "shape": list(shape), "low": list(low), "high": list(high), "dtype": "float32"} | more


def part(space):
    return {"name": "a", "start": 0, "space": space}


NAN, INFINITY = float("nan"), float("inf")
ODD_SPACES = {
    "a low bound that is NaN": box(low=[NAN]),
    "a high bound that is NaN": box(high=[1.0, NAN, 1.0]),
    "a bound that is text": box(low=["-1"]),
    "a bound that is true": box(high=[True]),
    "a low bound above all": box(low=[INFINITY], high=[INFINITY]),
    "a high bound below all": box(low=[-INFINITY], high=[-INFINITY]),
    "bounds the wrong way round": box(low=[2.0]),
    "no bounds": box(low=[], high=[]),
    "a size of zero": box(shape=[3, 0]),
    "a product that overflows": box(shape=[2**30] * 32),
    "a product that overflows to something small": box(shape=[2**32, 2**32]),
    "very many dimensions": box(shape=[1] * 100_000),
    "a part that is NaN": box(parts=[part(box(low=[NAN]))]),
    "parts in parts in parts": reduce(lambda inner, _: box(parts=[part(inner)]), range(90), box()),
    "too many choices": {"type": "discrete", "n": 2**31, "start": 0},
    "choices beyond int32": {"type": "discrete", "n": 2, "start": 2**31},
    "too many choices together": {"type": "multi_discrete", "nvec": [2**24] * 1000},
    "no choices": {"type": "multi_discrete", "nvec": []},
    "a type that is a list": {"type": [[]]},
}


def test_an_invalid_space_only_disconnects_its_sender(learner):
    """The first worker sets the spaces, so these messages come before any other worker."""
    for what, space in ODD_SPACES.items():
        with learner.line() as bad:
            assert said(bad, HELLO) == {"op": "proceed"}
            spaces = {"observation_space": space, "action_space": {"type": "discrete", "n": 2, "start": 0}}
            answer = said(bad, {"op": "join", "worker": "bad", "environments": 1, **spaces})
            assert (answer["op"], answer.get("kind")) == ("error", "protocol"), what
            assert "which is no space" in answer["message"], what
            assert len(answer["message"]) < 300
    with learner.line() as one, learner.line() as other:
        assert join(one, "one")["op"] == "welcome"
        # The same space, written differently.
        same = box(low=[-1.0] * 3, high=[1, 1.0, 1.0])
        assert join(other, "other", observation_space=same)["op"] == "welcome"
        assert said(one, batch(1))["op"] == said(other, batch(1))["op"] == "taken"
    with learner.line() as different:
        answer = join(different, "different", observation_space=box(high=[1.0, 1.0, 2.0]))
        assert (answer["op"], answer["kind"]) == ("error", "user")
