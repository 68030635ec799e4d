"""Answers questions that wait at the same time in one forward pass, if that is faster than one after the other.

Nothing waits for company: while one batch is computed, the next one gathers by itself. A small policy answers in less
time than the gathering costs, and a policy with convolutions takes as long for each row of a batch as for one row: such
policies are asked directly. The decision rests on the measured cost of single answers and of batches.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from steppe.serve.endpoint import Endpoint
from steppe.serve.messages.exchange import PolicyAnswer, Question

SLOW_SECONDS = 250e-6
"""Seconds a single answer must take before batches pay: a turn of the event loop and a future cost a tenth of that."""
MAX_COST = 0.7
"""A question in a batch must cost at most this part of a single answer."""
MIN_MEASURED = 4
"""Smaller batches are not measured."""
DECAY = 0.999
"""Decay of the batch measurement with each single answer, so that batches are tried again now and then."""
MAX_BATCH = 64
"""Most questions in a batch; more would keep the first ones waiting for little gain."""
STEP = 1.02
"""Each measurement moves the estimate of the median by this factor, so that outliers count no more than others."""


class Batcher:
    """Answers questions singly or in batches; used from one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._waiting: list[tuple[Question, asyncio.Future[PolicyAnswer]]] = []
        self.seconds = 1e-6
        """Cost of a single answer: about the median of the last few hundred."""
        self.together = 0.0
        """Cost of an answer in a batch; small until it has been measured."""

    @property
    def gathers(self) -> bool:
        """Whether batches are faster at the moment."""
        return self.seconds > SLOW_SECONDS and self.together < MAX_COST * self.seconds

    @property
    def answers_at_once(self) -> bool:
        """Whether `answer` may be called now; else `ask` must be awaited."""
        return not self._endpoint.is_shared and not self.gathers

    async def ask(self, question: Question) -> PolicyAnswer:
        """Answers a question in the best way at the moment: shared with other replicas, in a batch, or singly."""
        if self._endpoint.is_shared:
            return await self._endpoint.ask(question)
        return await self.gathered(question) if self.gathers else self.answer(question)

    def answer(self, question: Question) -> PolicyAnswer:
        """Answers a question by itself."""
        started = perf_counter()
        answer = self._endpoint.answer(question)
        self._measure(perf_counter() - started)
        self.together *= DECAY
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
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
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
            self._measure(seconds)
        elif len(batch) >= MIN_MEASURED:
            self.together = seconds / len(batch) if not self.together else (self.together + seconds / len(batch)) / 2
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue  # its client hung up
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _measure(self, seconds: float) -> None:
        self.seconds *= STEP if seconds > self.seconds else 1 / STEP
