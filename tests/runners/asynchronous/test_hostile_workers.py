"""A learner in a process of its own goes on learning, and keeps its memory and its checkpoint, whatever workers send."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest
from learner_process import ROWS, LearnerProcess, batch, join, said

from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.runners.asynchronous.engine import _stored


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
