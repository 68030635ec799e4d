"""The cost of routing: a bandit's choice, sticky episodes and the ledger's queue add under 50 us to a request."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

import steppe
from interleave import Contestant, Run, Verdict, conclude, interleave, is_quick, spread
from serving_contestants import prepare
from steppe.serve import Endpoint, Question, load_endpoint

ALONE, ROUTED, EPISODES = "the policy by itself", "a router, a request at a time", "a router, episodes of 20 requests"
COLUMNS = {"us": "us a request", "cpu_us": "CPU us a request with the ledger's writer"}
BAR = 50.0


def main() -> int:
    quick = is_quick(__doc__)
    count, rounds = (2000, 1) if quick else (20_000, 5)
    runs = interleave(
        [
            Contestant(ALONE, lambda seed: asyncio.run(alone(count))),
            Contestant(ROUTED, lambda seed: asyncio.run(routed(count, 1))),
            Contestant(EPISODES, lambda seed: asyncio.run(routed(count, 20))),
        ],
        rounds,
    )
    verdicts = []
    for name in (ROUTED, EPISODES):
        more = [ours["us"] - bare["us"] for ours, bare in zip(runs[name], runs[ALONE], strict=True)]
        claim = f"{name}: under {BAR:g} us more than {ALONE}"
        verdicts.append(Verdict(claim, spread(more, "{:.1f}", " us"), median(more) < BAR))
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost=None)


async def alone(count: int) -> Run:
    """Measures the forward pass alone, without an endpoint around it."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = await started(Path(folder), "policy")
        policy = endpoint.graph.leaves[0].versions.current.policy
        observation = np.zeros((1, 4), np.float32)
        result = await timed(lambda number: policy.act(observation), count)
        await endpoint.close()
        return result


async def routed(count: int, length: int) -> Run:
    """Measures answers of a router over three policies, in episodes of `length` requests."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = await started(Path(folder), "router.json")
        observation = np.zeros((1, 4), np.float32)

        def ask(number: int) -> Any:
            if length == 1:
                return endpoint.answer(Question(observation))
            episode, step = divmod(number, length)
            ends = step == length - 1
            return endpoint.answer(
                Question(observation, sequence_id=f"episode-{episode}", sequence_start=step == 0, sequence_end=ends)
            )

        result = await timed(ask, count)
        await endpoint.close()
        return result


async def timed(ask: Any, count: int) -> Run:
    """The median time of single requests; between them the event loop and the ledger's writer get their turn."""
    seconds, cpu = [], process_time()
    for number in range(count):
        started = perf_counter()
        ask(number)
        seconds.append(perf_counter() - started)
        await asyncio.sleep(0)
    return {
        "version": steppe.__version__,
        "us": median(seconds) * 1e6,
        "cpu_us": (process_time() - cpu) / count * 1e6,
    }


async def started(folder: Path, graph: str) -> Endpoint:
    prepare(folder, 0)
    assert json.loads((folder / "router.json").read_text())["kind"] == "router"
    endpoint = load_endpoint(str(folder / graph), name="policy", folder=folder / "state")
    await endpoint.start()
    return endpoint


if __name__ == "__main__":
    sys.exit(main())
