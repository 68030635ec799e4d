"""Questions that wait at the same time are answered together, where that is quicker than one after the other.

There is no waiting for company: while one batch is computed, the next one gathers by itself. A small policy answers in
less time than the gathering costs, and one with convolutions takes as long for each of many as for one: those are asked
directly. What decides is how long answers take by themselves and together, which is measured all along.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

from steppe.serve.messages.exchange import PolicyAnswer, Question

DEAR = 250e-6
"""Seconds an answer must take before gathering pays: a turn of the event loop and a future cost a tenth of that."""
WORTH = 0.7
"""A question must cost at most this part in a batch of what it costs by itself."""
FEW = 4
"""Smaller batches say nothing about that."""
FORGETTING = 0.999
"""So much a measurement of batches counts after one more direct answer: now and then it is tried again."""
MOST = 64
"""How many questions make one batch; more would keep the first ones waiting for little gain."""
STEP = 1.02
"""By what factor one more measurement moves the median of them; one that is far off moves it no more than any other."""


class Answerer(Protocol):
    """The part of an endpoint that a batcher needs."""

    is_shared: bool

    async def ask(self, question: Question) -> PolicyAnswer:
        """Answers one question of an endpoint with several replicas."""

    def answer(self, question: Question) -> PolicyAnswer:
        """One by itself."""

    def answers(self, questions: list[Question]) -> list[PolicyAnswer | Exception]:
        """Several at once."""


class Batcher:
    """Asks an endpoint for whoever calls `ask`; used from one event loop."""

    def __init__(self, endpoint: Answerer) -> None:
        self._endpoint = endpoint
        self._waiting: list[tuple[Question, asyncio.Future[PolicyAnswer]]] = []
        self.seconds = 1e-6
        """What an answer by itself costs at the moment: about the median of the last few hundred."""
        self.together = 0.0
        """What an answer costs in a batch; little, until it has been tried."""
        self.batches = 0
        self.largest = 0

    @property
    def gathers(self) -> bool:
        """Whether questions are answered together at the moment."""
        return self.seconds > DEAR and self.together < WORTH * self.seconds

    @property
    def answers_at_once(self) -> bool:
        """Whether `answer` may be called now; else `ask` must be awaited."""
        return not self._endpoint.is_shared and not self.gathers

    async def ask(self, question: Question) -> PolicyAnswer:
        """Answers a question in the way that is right at the moment: with other replicas, together, or directly."""
        if self._endpoint.is_shared:
            return await self._endpoint.ask(question)
        return await self.gathered(question) if self.gathers else self.answer(question)

    def answer(self, question: Question) -> PolicyAnswer:
        """Asks directly."""
        started = perf_counter()
        answer = self._endpoint.answer(question)
        self._took(perf_counter() - started)
        self.together *= FORGETTING
        return answer

    async def gathered(self, question: Question) -> PolicyAnswer:
        """Asks together with all that were asked in this turn of the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PolicyAnswer] = loop.create_future()
        self._waiting.append((question, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._flush, loop)
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        if self._waiting:
            loop.call_soon(self._flush, loop)
        started = perf_counter()
        try:
            answers = self._endpoint.answers([question for question, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        seconds = perf_counter() - started
        if len(batch) == 1:
            # So that a policy that was dear for a moment is asked directly again.
            self._took(seconds)
        elif len(batch) >= FEW:
            self.together = seconds / len(batch) if not self.together else (self.together + seconds / len(batch)) / 2
        self.batches += 1
        self.largest = max(self.largest, len(batch))
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue  # its client hung up
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _took(self, seconds: float) -> None:
        self.seconds *= STEP if seconds > self.seconds else 1 / STEP
