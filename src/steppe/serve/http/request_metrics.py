"""Observability of a server: Prometheus metrics, an access log of JSON lines, and its current state."""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import orjson

from steppe.errors import MissingExtra, UserError
from steppe.serve.admission import Gate
from steppe.serve.endpoint import Endpoint
from steppe.serve.http.replies import HttpReply
from steppe.serve.messages.exchange import BranchStanding, EndpointStanding, PolicyStanding

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bucket bounds in seconds: policies answer within the first few, feedback waits for the disk."""
RECENT = 4096
"""How many recent requests the page's latencies come from."""
MAX_LINES = 100_000
"""Most lines of the access log that wait for the disk."""
WRITE_SECONDS = 0.2


class Observer:
    """Counts requests; used from one thread, and fast, since it sees every request."""

    def __init__(self, log: AccessLog | None = None) -> None:
        self.started = time.time()
        self.durations: dict[tuple[str, int], list[float]] = {}
        """(operation, status) -> a count for each of BUCKETS, a count of longer ones, and the sum of seconds."""
        self.requests: dict[tuple[str, str, int], int] = {}
        """(operation, policy, status) -> number of requests."""
        self.recent: deque[float] = deque(maxlen=RECENT)
        self._log = log

    def record(self, operation: str, reply: HttpReply, seconds: float, client: str, path: str) -> None:
        """Counts one request, which took so many seconds."""
        status = reply.status
        counts = self.durations.get((operation, status))
        if counts is None:
            counts = self.durations[operation, status] = [0] * (len(BUCKETS) + 1) + [0.0]
        counts[bisect_left(BUCKETS, seconds)] += 1
        counts[-1] += seconds
        key = (operation, reply.label, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        if operation == "infer" and status == 200:
            self.recent.append(seconds)
        if self._log is not None:
            self._log.lines.append((time.time(), client, operation, path, status, seconds, reply.label))

    @property
    def answers(self) -> int:
        """How many questions were answered."""
        return sum(
            count for (operation, _, status), count in self.requests.items() if (operation, status) == ("infer", 200)
        )

    def latency(self) -> dict[str, float | None]:
        """Quantiles of the last few thousand answers, in seconds."""
        ordered = sorted(self.recent)
        return {
            name: ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None
            for name, part in (("p50", 0.5), ("p99", 0.99))
        }


class AccessLog:
    """Writes the access log from a thread of its own, a few times a second, so that no request waits for the disk."""

    def __init__(self, path: Path | str) -> None:
        """`-` is standard output."""
        self.lines: deque[tuple[Any, ...]] = deque(maxlen=MAX_LINES)
        self._file = _opened(str(path))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the remaining lines."""
        self._ending.set()
        self._thread.join()
        if self._file is not sys.stdout.buffer:
            self._file.close()

    def _run(self) -> None:
        while not self._ending.wait(WRITE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        text = b"".join(_line(self.lines.popleft()) for _ in range(len(self.lines)))
        if text:
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:
                print(f"error: the access log cannot be written: {error}", file=sys.stderr)


def standing(endpoint: Endpoint, observer: Observer, gate: Gate) -> dict[str, Any]:
    """The current state of the endpoint and its server, in plain values."""
    answered = sum(count for (operation, _, _), count in observer.requests.items() if operation == "infer")
    return {
        "endpoint": asdict(endpoint.standing()),
        "server": {
            "started": observer.started,
            "now": time.time(),
            "answers": answered,
            "failed": sum(count for (_, _, status), count in observer.requests.items() if status >= 500),
            "refused": gate.refused,
            "under_way": gate.under_way,
            "is_draining": gate.is_draining,
            "latency": observer.latency(),
        },
    }


def _total_reward(branch: BranchStanding) -> float | None:
    return None if branch.mean_reward is None else branch.mean_reward * branch.feedback


ROUTE_METRICS: tuple[tuple[str, str, str, Callable[[BranchStanding], float | None]], ...] = (
    ("route_requests", "Requests by route", "counter", lambda branch: branch.requests),
    ("route_decisions", "Episodes and lone requests", "counter", lambda branch: branch.decisions),
    ("route_feedback", "Decisions that were rewarded", "counter", lambda branch: branch.feedback),
    ("route_reward", "All rewards by route, added up", "gauge", _total_reward),
    ("route_mean_reward", "Mean return by route", "gauge", lambda branch: branch.mean_reward),
    ("route_probability", "Probability that the next episode goes there", "gauge", lambda branch: branch.probability),
    ("route_best", "1 for the best route of a router, else 0", "gauge", lambda branch: branch.is_best),
)
POLICY_METRICS: tuple[tuple[str, str, str, Callable[[PolicyStanding], float | None]], ...] = (
    ("policy_requests", "Requests by policy", "counter", lambda policy: policy.requests),
    ("policy_feedback", "Rewards by policy", "counter", lambda policy: policy.feedback),
    ("policy_mean_reward", "Mean return by policy", "gauge", lambda policy: policy.mean_reward),
    ("policy_problem", "1 where the newest file could not be taken", "gauge", lambda policy: bool(policy.problem)),
)
ENDPOINT_METRICS: tuple[tuple[str, str, str, Callable[[EndpointStanding], float | None]], ...] = (
    ("open_episodes", "Episodes that are open", "gauge", lambda endpoint: endpoint.open_episodes),
    ("expired_episodes", "Episodes that were forgotten", "counter", lambda endpoint: endpoint.expired_episodes),
    ("ledger_queued", "What is not on the disk yet", "gauge", lambda endpoint: endpoint.queued),
    ("ledger_dropped", "Decisions that were never written", "counter", lambda endpoint: endpoint.dropped),
    ("ledger_up", "1 while rewards can be written", "gauge", lambda endpoint: endpoint.ledger_problem is None),
)
"""(name, documentation, type, value) of each metric; a value of None leaves the sample out."""


class Metrics:
    """All metrics, as a collector of Prometheus."""

    def __init__(self, endpoint: Endpoint, observer: Observer, gate: Gate) -> None:
        self._endpoint, self._observer, self._gate = endpoint, observer, gate
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError as error:
            raise MissingExtra("metrics for Prometheus", "serve") from error
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # type: ignore[arg-type]
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The body of GET /metrics."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def describe(self) -> list[Any]:
        """Describes nothing, so that registration collects nothing."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics; called by the registry."""
        stands = self._endpoint.standing()
        branches = {(router.name, branch.name): branch for router in stands.routers for branch in router.branches}
        policies = {(policy.name,): policy for policy in stands.policies}
        yield from self._requests()
        yield from _families(ROUTE_METRICS, ["router", "branch"], branches)
        yield from _families(POLICY_METRICS, ["policy"], policies)
        versions = {(each.name, each.version): 1.0 for each in stands.policies}
        yield _family("policy_version", "1 for the version in service", "gauge", ["policy", "version"], versions)
        yield from _families(ENDPOINT_METRICS, [], {(): stands})

    def _requests(self) -> Iterator[Any]:
        from prometheus_client.core import HistogramMetricFamily

        seconds = HistogramMetricFamily(
            "steppe_serve_request_duration_seconds",
            "From the first byte of a request to its answer",
            labels=["operation", "status"],
        )
        for (operation, status), counts in self._observer.durations.items():
            so_far, buckets = 0.0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts[:-1], strict=True):
                so_far += count
                buckets.append((bound, so_far))
            seconds.add_metric([operation, str(status)], buckets, sum_value=counts[-1])
        yield seconds
        requests = {(*key, str(status)): count for (*key, status), count in self._observer.requests.items()}
        labels = ["operation", "policy", "status"]
        yield _family("requests", "Requests that were answered", "counter", labels, requests)
        refused = "Requests refused for their token, rate or number"
        yield _family("refused", refused, "counter", [], {(): self._gate.refused})
        under_way = "Requests that wait for their answer"
        yield _family("requests_under_way", under_way, "gauge", [], {(): self._gate.under_way})


def _families(table: Any, labels: list[str], subjects: dict[Any, Any]) -> Iterator[Any]:
    """The metrics of a table, for subjects by their label values."""
    for name, documentation, kind, value in table:
        values = {key: value(subject) for key, subject in subjects.items()}
        yield _family(name, documentation, kind, labels, values)


def _family(name: str, documentation: str, kind: str, labels: list[str], values: dict[Any, Any]) -> Any:
    """One Prometheus metric, with a value for each tuple of label values."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = make(f"steppe_serve_{name}", documentation, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric([*key], float(value))
    return family


def _opened(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdout.buffer
    try:
        return Path(path).open("ab")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write the access log {path}: {reason}; choose another file") from None


def _line(entry: tuple[Any, ...]) -> bytes:
    when, client, operation, path, status, seconds, policy = entry
    fields = {
        "time": when,
        "client": client,
        "operation": operation,
        "path": path[:200],
        "status": status,
        "milliseconds": round(seconds * 1000, 3),
        "policy": policy or None,
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
