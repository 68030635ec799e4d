from __future__ import annotations

import asyncio

import numpy as np
import pytest

from steppe.errors import UserError
from steppe.serve import question_batches
from steppe.serve.messages.exchange import PolicyAnswer, Question
from steppe.serve.question_batches import MAX_BATCH, SLOW_SECONDS, Batcher


class Clock:
    """A clock that advances only during answers, so that other load of the machine does not matter."""

    now = 0.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(question_batches, "perf_counter", lambda: Clock.now)


class Endpoint:
    """Answers with the observation; refuses negative ones."""

    is_shared = False

    def __init__(self, seconds=0.0):
        self.seconds, self.sizes = seconds, []

    def answer(self, question):
        Clock.now += self.seconds
        if question.observations[0] < 0:
            raise UserError("negative")
        return PolicyAnswer(str(question.id), question.observations, (), "p", "1", 1.0)

    def answers(self, questions):
        self.sizes.append(len(questions))
        results = []
        for question in questions:
            try:
                results.append(self.answer(question))
            except UserError as error:
                results.append(error)
        return results


def ask(number):
    return Question(np.array([number]), str(number))


def test_questions_of_one_turn_are_answered_together_and_in_order():
    async def main():
        batcher = Batcher(endpoint)
        return await asyncio.gather(*(batcher.gathered(ask(n)) for n in range(MAX_BATCH + 10)))

    endpoint = Endpoint()
    answers = asyncio.run(main())
    assert [answer.id for answer in answers] == [str(n) for n in range(MAX_BATCH + 10)]
    assert endpoint.sizes == [MAX_BATCH, 10]


def test_an_error_in_one_question_reaches_only_its_client():
    async def main():
        batcher = Batcher(Endpoint())
        return await asyncio.gather(*(batcher.gathered(ask(n)) for n in (1, -1, 2)), return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first.id, third.id) == ("1", "2")
    assert isinstance(second, UserError)


def test_no_question_waits_for_ever_if_the_endpoint_fails():
    async def main():
        batcher = Batcher(Broken())
        return await asyncio.gather(*(batcher.gathered(ask(n)) for n in range(3)), return_exceptions=True)

    class Broken(Endpoint):
        def answers(self, questions):
            raise RuntimeError("broken")

    assert [type(each) for each in asyncio.run(main())] == [RuntimeError] * 3


def test_a_cancelled_question_does_not_disturb_the_others():
    async def main():
        batcher = Batcher(Endpoint())
        tasks = [asyncio.create_task(batcher.gathered(ask(n))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first.id, third.id) == ("0", "2")
    assert isinstance(second, asyncio.CancelledError)


def test_a_fast_policy_is_asked_directly_and_a_slow_one_in_batches():
    quick, dear = Batcher(Endpoint()), Batcher(Endpoint(2 * SLOW_SECONDS))
    for batcher in (quick, dear):
        for number in range(400):
            batcher.answer(ask(number))
    assert not quick.gathers
    assert dear.gathers


def test_a_policy_without_gain_from_batches_is_asked_singly():
    async def main(endpoint):
        batcher = Batcher(endpoint)
        for number in range(400):
            batcher.answer(ask(number))
        assert batcher.gathers
        for _ in range(3):
            await asyncio.gather(*(batcher.gathered(ask(n)) for n in range(8)))
        return batcher

    class Quicker(Endpoint):
        def answers(self, questions):
            first, *rest = questions
            return [
                self.answer(first),
                *(PolicyAnswer(str(each.id), each.observations, (), "p", "1", 1.0) for each in rest),
            ]

    assert not asyncio.run(main(Endpoint(2 * SLOW_SECONDS))).gathers
    assert asyncio.run(main(Quicker(2 * SLOW_SECONDS))).gathers


def test_one_long_pause_does_not_turn_batches_on():
    endpoint = Endpoint()
    batcher = Batcher(endpoint)
    for number in range(200):
        batcher.answer(ask(number))
    endpoint.seconds = 0.05
    batcher.answer(ask(1))
    assert not batcher.gathers


def test_an_error_of_a_single_question_is_raised():
    with pytest.raises(UserError):
        Batcher(Endpoint()).answer(ask(-1))
