"""kill -9 during feedback, again and again: every acknowledged reward is there exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import contents
from postgres_server import PostgresServer, missing_postgres
from served_graphs import make_endpoint

import steppe
from steppe.serve.ledger import make_ledger

GRAPH = {"kind": "router", "name": "best", "branches": ["p0", "p1", "p2"]}
CHILD = """
import asyncio, json, sys
import numpy as np
from steppe.serve import Feedback, NotFound, Question, endpoint, load_endpoint
from steppe.serve.ledger import writer
from steppe.specs.serving import GraphSpec

# A disk that others keep busy is no ledger that is away.
endpoint.FEEDBACK_SECONDS = writer.SILENT_SECONDS = 120.0
root, ledger, graph, life = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]

async def play(endpoint, number):
    # A client that was not answered sends the same again, to the next life of the endpoint.
    step = 0
    while True:
        name = f"{life}-{number}-{step // 5}"
        answer = endpoint.answer(Question(np.zeros((1, 4), np.float32), sequence_id=name))
        reward = Feedback(0.25, sequence_id=name, feedback_id=str(step), sequence_end=step % 5 == 4)
        print("sent", name, step, flush=True)
        receipt = await endpoint.feedback(reward)
        assert receipt.applied
        print("kept", name, step, flush=True)
        step += 1

async def repeat(endpoint, line):
    name, step = line.split()
    try:
        receipt = await endpoint.feedback(Feedback(0.25, sequence_id=name, feedback_id=step))
    except NotFound:
        # Its episode had not been written down either: the client begins it again.
        print("unknown", name, step, flush=True)
    else:
        print("repeated" if not receipt.applied else "kept", name, step, flush=True)

async def main():
    endpoint = load_endpoint(GraphSpec.model_validate(graph), start=root, folder=root + "/serving", ledger=ledger)
    await endpoint.start()
    for line in sys.stdin.read().splitlines():
        await repeat(endpoint, line)
    print("ready", flush=True)
    await asyncio.gather(*(play(endpoint, number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_acknowledged_reward_is_lost_and_none_is_counted_twice(tmp_path, kind):
    if kind == "postgres" and (reason := missing_postgres()):
        pytest.skip(reason)
    make_endpoint(tmp_path, GRAPH)
    server = PostgresServer() if kind == "postgres" else None
    place = server.url if server is not None else str(tmp_path / "ledger.sqlite")
    try:
        kept = _lives(tmp_path, place, 8)
        _check(place, kept)
    finally:
        if server is not None:
            server.remove()


def _lives(root: Path, place: str, number: int) -> set[tuple[str, str]]:
    """The rewards that were acknowledged in several lives of an endpoint, each ended by kill -9."""
    rng = random.Random(5)
    kept: set[tuple[str, str]] = set()
    doubtful: set[tuple[str, str]] = set()
    path = str(Path(steppe.__file__).parents[1])
    for life in range(number):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root), place, json.dumps(GRAPH), str(life)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        # Half of the acknowledged rewards are repeated, as by a client that never got the answer.
        again = sorted(doubtful) + rng.sample(sorted(kept), len(kept) // 2)
        process.stdin.write("".join(f"{name} {step}\n" for name, step in again))
        process.stdin.close()
        last, count, certain, lines = rng.randint(20, 200), 0, set(kept), []
        for line in process.stdout:
            lines.append(line)
            count += line.startswith("kept")
            if count >= last and len(lines) > len(again):
                process.send_signal(signal.SIGKILL)
                break
        lines += process.stdout.readlines()
        process.wait(120)
        process.stdout.close()
        sent: set[tuple[str, str]] = set()
        for word, *words in (line.split() for line in lines if line.endswith("\n")):
            if word == "sent":
                sent.add((words[0], words[1]))
            elif word in ("kept", "repeated"):
                kept.add((words[0], words[1]))
            if word == "unknown":
                # Acknowledged rewards are known for ever.
                assert (words[0], words[1]) not in certain
        doubtful = sent - kept
        assert process.returncode == -signal.SIGKILL, lines
    return kept


def _check(place: str, kept: set[tuple[str, str]]) -> None:
    rewards, decisions, arms = contents(make_ledger(place, "best"))
    written = [(sequence, identity) for _, sequence, identity in rewards]
    assert len(written) == len(set(written))
    assert kept <= set(written)
    # A reward without acknowledgement may be there only if it was being sent when the process died.
    assert len(written) - len(kept) <= 8
    by_key: dict[str, int] = {}
    for key, *_ in rewards:
        by_key[key] = by_key.get(key, 0) + 1
    for key, _, feedback, total, learned, ended, _ in decisions:
        assert feedback == by_key.get(key, 0)
        assert total == 0.25 * feedback
        assert learned == (total if ended is not None and feedback else None)
    for policy in ("p0", "p1", "p2"):
        returns = [row[4] for row in decisions if row[6] == policy and row[4] is not None]
        arm = arms["best", policy]
        assert arm.count == len(returns)
        assert arm.mean * arm.count == pytest.approx(sum(returns))
        assert arm.chosen == sum(row[6] == policy for row in decisions)
