from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from steppe.errors import UserError
from steppe.serve.clients import EndpointAccess, EndpointAway, EndpointFault, EpisodeLost, ModelDescription
from steppe.serve.clients import retries as module
from steppe.serve.clients.retries import EndpointRetries, PlayStopped, RetryingClient
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question

QUESTION = Question(np.zeros((1, 4), np.float32), id="q")
ANSWER = PolicyAnswer("q", np.zeros(1), (), "p", "1", 1.0)


class Scripted:
    """A client whose calls end as the script says, one after the other."""

    def __init__(self, *script: Any, applies_once: bool = True) -> None:
        self._script: Iterator[Any] = iter(script)
        self._applies_once = applies_once
        self.told: list[Feedback] = []
        self.is_closed = False

    def describe(self) -> ModelDescription:
        return ModelDescription("m", (4,), self._applies_once)

    def answer(self, question: Question) -> PolicyAnswer:
        return self._next()

    def feedback(self, feedback: Feedback) -> None:
        self.told.append(feedback)
        self._next()

    def close(self) -> None:
        self.is_closed = True

    def _next(self) -> Any:
        value = next(self._script)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "MAX_PAUSE", 0.002)


def patient(client: Scripted, seconds: float = 30.0) -> tuple[RetryingClient, list[str], threading.Event]:
    said: list[str] = []
    stop = threading.Event()
    return RetryingClient(client, EndpointRetries(EndpointAccess("http://x:1"), seconds, stop, said.append)), said, stop


def test_an_absence_and_its_end_are_reported_once_each() -> None:
    waiting, said, _ = patient(
        Scripted(EndpointAway("connection refused"), EndpointAway("connection refused"), ANSWER, ANSWER)
    )
    assert waiting.answer(QUESTION) is ANSWER
    assert waiting.answer(QUESTION) is ANSWER
    assert said[0] == "the endpoint at http://x:1 is away (connection refused); trying again for up to 30 s"
    assert said[1].startswith("the endpoint at http://x:1 is back after ")
    assert len(said) == 2


def test_retries_end_after_their_time() -> None:
    waiting, _, _ = patient(Scripted(*[EndpointAway("connection refused")] * 10_000), seconds=0.02)
    with pytest.raises(EndpointFault, match=r"was away for 0\.02 s \(connection refused\); start it with"):
        waiting.answer(QUESTION)


def test_no_patience_means_one_try() -> None:
    waiting, _, _ = patient(Scripted(EndpointAway("no"), ANSWER), seconds=0)
    with pytest.raises(EndpointFault):
        waiting.answer(QUESTION)


def test_a_pause_that_the_endpoint_asks_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    waiting, _, stop = patient(Scripted(EndpointAway("busy", pause=2.0), ANSWER))
    monkeypatch.setattr(stop, "wait", lambda seconds: pauses.append(seconds))
    waiting.answer(QUESTION)
    assert 1.0 <= pauses[0] <= 2.0


def test_a_mistake_is_not_repeated() -> None:
    waiting, said, _ = patient(Scripted(UserError("wrong shape"), ANSWER))
    with pytest.raises(UserError, match="wrong shape"):
        waiting.answer(QUESTION)
    assert said == []


def test_a_stopped_player_does_not_wait_on() -> None:
    waiting, _, stop = patient(Scripted(*[EndpointAway("connection refused")] * 10))
    stop.set()
    with pytest.raises(PlayStopped):
        waiting.answer(QUESTION)


def test_feedback_is_repeated_under_the_same_id_if_it_counts_once() -> None:
    client = Scripted(EndpointAway("broke", was_sent=True), EndpointAway("refused"), None)
    waiting, _, _ = patient(client)
    waiting.feedback(Feedback(1.0, None, "e", True, "e-return"))
    assert [each.feedback_id for each in client.told] == ["e-return"] * 3
    assert waiting.uncounted == 0


def test_feedback_that_may_have_arrived_is_not_repeated_if_it_would_count_twice() -> None:
    client = Scripted(EndpointAway("refused"), EndpointAway("broke", was_sent=True), None, applies_once=False)
    waiting, _, _ = patient(client)
    waiting.feedback(Feedback(1.0, None, "e", True, "e-return"))
    assert len(client.told) == 2
    assert waiting.uncounted == 1


def test_feedback_for_a_forgotten_episode_is_counted_as_lost() -> None:
    waiting, _, _ = patient(Scripted(EpisodeLost("no such episode")))
    waiting.feedback(Feedback(1.0, None, "e", True, "e-return"))
    assert waiting.uncounted == 1


def test_closing_closes_the_client() -> None:
    client = Scripted()
    waiting, _, _ = patient(client)
    waiting.close()
    assert client.is_closed
