"""Real endpoints that are stopped, killed and restarted while clients ask and reward them."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoints import Served, commands_in, serve, write_router
from ledgers import contents
from ports import free_port
from postgres_server import PostgresServer, missing_postgres
from processes import SECONDS, Steppe, wait_until

from steppe.serve.ledger import Ledger, make_ledger

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

STEPS = 4
"""Rewards of 1 in each episode."""
BUSY = ("the ledger has not answered for", "the ledger does not answer")
"""The error for rewards while a busy disk takes seconds for a write; they are sent again."""
OBSERVATION = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": [0.01, 0.02, -0.03, 0.04]}


class Player(threading.Thread):
    """Plays episodes and asks single questions, and repeats each message until it is answered."""

    def __init__(self, name: str, ports: list[int], may_forget: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.answered = 0
        """Number of questions."""
        self.kept: list[tuple[str | None, str]] = []
        """(episode, feedback id) of every acknowledged reward."""
        self.applied = 0
        """How many of them were applied."""
        self.failure: BaseException | None = None
        self.is_over = threading.Event()
        self._ports = itertools.cycle(ports)
        self._may_forget = may_forget
        """Whether a route without acknowledgement may be lost, as by kill -9."""
        self._connections: dict[int, http.client.HTTPConnection] = {}

    def run(self) -> None:
        """Stops between two episodes."""
        try:
            for number in itertools.count():
                if self.is_over.is_set():
                    return
                self._play(f"{self.name}-{number}")
                self._ask_once()
        except BaseException as error:
            self.failure = error
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection."""
        for connection in self._connections.values():
            connection.close()

    def _play(self, sequence: str) -> None:
        policy, step = None, 0
        while step < STEPS:
            answer = self._question(parameters={"sequence_id": sequence})
            if policy is not None and not (self._may_forget and step == 0):
                assert answer["parameters"]["policy"] == policy, f"{sequence} changed its route"
            policy = answer["parameters"]["policy"]
            receipt = self._reward(sequence_id=sequence, feedback_id=str(step), sequence_end=step == STEPS - 1)
            if receipt is None:
                assert step == 0, f"{sequence} was forgotten although it had been rewarded"
                continue
            # Rewards are acknowledged one after the other, so each must have been added exactly once.
            assert (receipt["episode_return"], receipt["policy"]) == (step + 1.0, policy)
            self.kept.append((sequence, str(step)))
            step += 1

    def _ask_once(self) -> None:
        """Asks a single question and rewards it."""
        receipt = None
        while receipt is None:
            answer = self._question()
            receipt = self._reward(id=answer["id"])
        assert receipt["episode_return"] == 1.0
        self.kept.append((None, answer["id"]))

    def _question(self, **more: Any) -> dict[str, Any]:
        status, answer = self._post("infer", {"inputs": [OBSERVATION], **more})
        assert status == 200, answer
        self.answered += 1
        return answer

    def _reward(self, **words: Any) -> dict[str, Any] | None:
        """The receipt; None if the endpoint has forgotten the decision, which only kill -9 may cause."""
        status, receipt = self._post("feedback", {"reward": 1.0, **words})
        if status == 404 and self._may_forget:
            return None
        assert status == 200, receipt
        self.applied += receipt["applied"]
        return receipt

    def _post(self, what: str, body: dict[str, Any]) -> tuple[int, Any]:
        deadline = time.monotonic() + SECONDS
        while True:
            port = next(self._ports)
            if port not in self._connections:
                self._connections[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            connection = self._connections[port]
            try:
                connection.request("POST", f"/v2/models/router/{what}", json.dumps(body))
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 503 or not answer["error"].startswith(BUSY):
                    return response.status, answer
            except (OSError, http.client.HTTPException):
                connection.close()
            assert time.monotonic() < deadline, "nobody answers"
            time.sleep(0.005)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands in a folder with a graph of three policies."""
    with commands_in(tmp_path, monkeypatch) as steppe:
        write_router(steppe.folder)
        yield steppe


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    if reason := missing_postgres():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


def test_repeated_sigterm_loses_no_answer_no_reward_and_no_route(shell: Steppe) -> None:
    served = serve(shell, "-f", "router", port=free_port())
    with playing([served.port], may_forget=False) as players:
        for _ in range(4):
            wait_for_more(players, 150)
            served.command.send(signal.SIGTERM)
            ended = served.command.answer()
            assert (ended.code, ended.err) == (0, "")
            served = serve(shell, "-f", "router", port=served.port)
        wait_for_more(players, 150)
    served.command.send(signal.SIGTERM)
    assert served.command.answer().code == 0
    arms = check(ledger_of(shell), players)
    # The endpoint counts exactly the answered questions: none was lost, and none was counted twice.
    assert sum(arm.requests for (node, _), arm in arms.items() if node == "router") == sum(p.answered for p in players)
    assert all(player.applied == len(player.kept) for player in players)


def test_repeated_kill_9_loses_no_acknowledged_reward_and_counts_none_twice(shell: Steppe) -> None:
    rng = random.Random(11)
    served = serve(shell, "-f", "router", port=free_port())
    with playing([served.port], may_forget=True) as players:
        for _ in range(6):
            wait_for_more(players, rng.randint(30, 200))
            assert served.command.kill() == -signal.SIGKILL
            served = serve(shell, "-f", "router", port=served.port)
        wait_for_more(players, 100)
    served.command.send(signal.SIGTERM)
    assert served.command.answer().code == 0
    check(ledger_of(shell), players)


def test_open_episodes_keep_their_routes_over_both_kinds_of_end(shell: Steppe) -> None:
    served = serve(shell, "-f", "router", port=free_port())
    player = Player("alone", [served.port], may_forget=False)
    names = [f"e{number}" for number in range(40)]

    def routes() -> list[str]:
        return [player._question(parameters={"sequence_id": name})["parameters"]["route"] for name in names]

    first = routes()
    for name in names:
        assert player._reward(sequence_id=name, feedback_id="before") is not None
    assert len(set(first)) > 1
    for end in (signal.SIGTERM, signal.SIGKILL):
        served.command.send(end)
        served.command.answer()
        served = serve(shell, "-f", "router", port=served.port)
        assert served.get("/standing")["endpoint"]["open_episodes"] == len(names)
        assert routes() == first
    player.close()


def test_replicas_on_one_database_share_arms_and_episodes(
    tmp_path: Path, shell: Steppe, postgres: PostgresServer
) -> None:
    with replicas(tmp_path, shell, postgres) as (first, second):
        # Every request goes to the other replica than the one before it.
        with playing([first.port, second.port], may_forget=False, count=4) as players:
            wait_for_more(players, 200)
        rewarded = sum(len({name or key for name, key in player.kept}) for player in players)
        for served in (first, second):
            wait_until(lambda served=served: sum(served.rewarded().values()) == rewarded, "both know all rewards")
        assert first.rewarded() == second.rewarded()
        probabilities = [
            [branch["probability"] for branch in served.get("/standing")["endpoint"]["routers"][0]["branches"]]
            for served in (first, second)
        ]
        assert probabilities[0] == probabilities[1]
        arms = check(make_ledger(postgres.url, "router"), players)
        wanted = sum(player.answered for player in players)
        assert sum(arm.requests for (node, _), arm in arms.items() if node == "router") == wanted


def test_a_killed_replica_loses_nothing(tmp_path: Path, shell: Steppe, postgres: PostgresServer) -> None:
    with (
        replicas(tmp_path, shell, postgres) as (first, second),
        playing([first.port, second.port], may_forget=True, count=4) as players,
    ):
        for _ in range(3):
            wait_for_more(players, 60)
            assert second.command.kill() == -signal.SIGKILL
            # The other replica continues the episodes of both.
            wait_for_more(players, 60)
            second = start_replica(tmp_path, shell, postgres, "second", second.port)
        wait_for_more(players, 60)
    check(make_ledger(postgres.url, "router"), players)


@contextlib.contextmanager
def playing(ports: list[int], may_forget: bool, count: int = 6) -> Iterator[list[Player]]:
    """Players that play until the end of the block and must not have seen any error."""
    players = [Player(f"player{number}", ports, may_forget) for number in range(count)]
    for player in players:
        player.start()
    try:
        yield players
    finally:
        for player in players:
            player.is_over.set()
    for player in players:
        player.join(SECONDS)
        assert not player.is_alive()
        if player.failure is not None:
            raise player.failure


def wait_for_more(players: list[Player], number: int) -> None:
    """Waits for that many more acknowledged rewards."""
    wanted = number + sum(len(player.kept) for player in players)

    def is_enough() -> bool:
        for player in players:
            if player.failure is not None:
                raise player.failure
        return sum(len(player.kept) for player in players) >= wanted

    wait_until(is_enough, f"{number} more rewards are acknowledged")


def ledger_of(shell: Steppe) -> Ledger:
    return make_ledger(shell.folder / "serving" / "router" / "ledger.sqlite", "router")


def check(ledger: Any, players: list[Player]) -> Any:
    """Checks that every acknowledged reward is there once, no other is, and the arms learned exactly these; returns the
    arms."""
    rewards, decisions, arms = contents(ledger)
    written = [(sequence, identity) for _, sequence, identity in rewards]
    kept = [reward for player in players for reward in player.kept]
    assert len(kept) == len(set(kept))
    assert sorted(map(str, written)) == sorted(map(str, kept))
    for _, _, feedback, total, learned, ended, _ in decisions:
        assert total == feedback
        assert learned == (total if ended is not None and feedback else None)
    for policy in ("bad1", "bad2", "good"):
        returns = [learned for *_, learned, _, own in decisions if own == policy and learned is not None]
        arm = arms["router", policy]
        assert (arm.count, arm.chosen) == (len(returns), sum(row[-1] == policy for row in decisions))
        assert arm.mean * arm.count == pytest.approx(sum(returns))
    return arms


@contextlib.contextmanager
def replicas(tmp_path: Path, shell: Steppe, postgres: PostgresServer) -> Iterator[tuple[Served, Served]]:
    """Two replicas of one endpoint, each with a folder of its own."""
    yield tuple(start_replica(tmp_path, shell, postgres, name, free_port()) for name in ("first", "second"))  # type: ignore[misc]


def start_replica(tmp_path: Path, shell: Steppe, postgres: PostgresServer, name: str, port: int) -> Served:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    graph, home = str(shell.folder / "router.json"), shell.folder
    shell.folder = folder
    try:
        return serve(shell, "-f", graph, "--database", postgres.url, port=port)
    finally:
        shell.folder = home
