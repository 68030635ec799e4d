"""Answers questions that wait at the same time in one forward pass, if that is faster than one after the other.

Nothing waits for company: while one batch is computed, the next one gathers by itself. A small policy answers in less
time than the gathering costs, and a policy with convolutions takes as long for each row of a batch as for one row: such
policies are asked directly. The decision rests on the measured cost of single answers and of batches.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

from steppe.serve.messages.exchange import PolicyAnswer, Question

DEAR = 250e-6
"""Seconds a single answer must take before batches pay: a turn of the event loop and a future cost a tenth of that."""
WORTH = 0.7
"""A question in a batch must cost at most this part of a single answer."""
FEW = 4
"""Smaller batches are not measured."""
FORGETTING = 0.999
"""Decay of the batch measurement with each single answer, so that batches are tried again now and then."""
MOST = 64
"""Most questions in a batch; more would keep the first ones waiting for little gain."""
STEP = 1.02
"""Each measurement moves the estimate of the median by this factor, so that outliers count no more than others."""


class Answerer(Protocol):
    """The part of an endpoint that a batcher needs."""

    is_shared: bool

    async def ask(self, question: Question) -> PolicyAnswer:
        """Answers one question of an endpoint with several replicas."""

    def answer(self, question: Question) -> PolicyAnswer:
        """Answers one question."""

    def answers(self, questions: list[Question]) -> list[PolicyAnswer | Exception]:
        """Answers several questions at once."""


class Batcher:
    """Answers questions singly or in batches; used from one event loop."""

    def __init__(self, endpoint: Answerer) -> None:
        self._endpoint = endpoint
        self._waiting: list[tuple[Question, asyncio.Future[PolicyAnswer]]] = []
        self.seconds = 1e-6
        """Cost of a single answer: about the median of the last few hundred."""
        self.together = 0.0
        """Cost of an answer in a batch; small until it has been measured."""
        self.batches = 0
        self.largest = 0

    @property
    def gathers(self) -> bool:
        """Whether batches are faster at the moment."""
        return self.seconds > DEAR and self.together < WORTH * self.seconds

    @property
    def answers_at_once(self) -> bool:
        """Whether `answer` may be called now; else `ask` must be awaited."""
        return not self._endpoint.is_shared and not self.gathers

    async def ask(self, question: Question) -> PolicyAnswer:
        """Answers a question in whichever way is right at the moment: shared with other replicas, in a batch, or
        singly."""
        if self._endpoint.is_shared:
            return await self._endpoint.ask(question)
        return await self.gathered(question) if self.gathers else self.answer(question)

    def answer(self, question: Question) -> PolicyAnswer:
        """Answers a question by itself."""
        started = perf_counter()
        answer = self._endpoint.answer(question)
        self._took(perf_counter() - started)
        self.together *= FORGETTING
        return answer

    async def gathered(self, question: Question) -> PolicyAnswer:
        """Answers a question together with all that come in the same turn of the event loop."""
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
            # So that a policy that was slow only for a moment is asked directly again.
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
