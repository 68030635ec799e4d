"""The Seldon v1 dialect: `POST /api/v0.1|v1.0/predictions` and `/feedback`, with `data.tensor` or `data.ndarray`.

A request's `meta.puid` is the question's id. An episode is named in `meta.tags`, which any client of the dialect can
send: `sequence_id`, `sequence_start`, `sequence_end`, `deterministic`; the answer's tags have `policy`, `version` and
`propensity` beside them, and `meta.routing` the branch of every router.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.serve.batching import Batcher
from steppe.serve.checking import check_depth
from steppe.serve.endpoint import Endpoint
from steppe.serve.exchange import Answer, Feedback, Question
from steppe.serve.http.replies import (
    Reply,
    Request,
    as_json,
    flag_field,
    object_field,
    optional_flag,
    parsed,
    reward_field,
    text_field,
)
from steppe.serve.tensors import as_array, flattened, shape_of

OBSERVATIONS = "the observations"
"""What errors call the numbers of a question."""

REASONS = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "TIMEOUT",
    413: "TOO_LARGE",
    415: "UNSUPPORTED_ENCODING",
    429: "TOO_MANY_REQUESTS",
    503: "UNAVAILABLE",
}


class Seldon:
    """The handlers of /api."""

    def __init__(self, endpoint: Endpoint, batcher: Batcher) -> None:
        self._endpoint, self._batcher = endpoint, batcher

    def ping(self, request: Request) -> Reply:
        """GET /ping"""
        return Reply(200, b"pong", [(b"content-type", b"text/plain"), (b"content-length", b"4")])

    def predictions(self, request: Request) -> Reply | Awaitable[Reply]:
        """POST /api/v1.0/predictions"""
        message = parsed(request.body)
        question, tags, is_tensor = self._read(message)
        if self._endpoint.is_shared or self._batcher.gathers:
            return self._predict_later(question, tags, is_tensor)
        return _reply(self._batcher.answer(question), tags, is_tensor)

    async def feedback(self, request: Request) -> Reply:
        """POST /api/v1.0/feedback: {request, response, reward, truth}."""
        receipt = await self._endpoint.feedback(read_feedback(parsed(request.body)))
        tags = {"applied": receipt.applied, "policy": receipt.policy}
        return as_json({"meta": {"puid": receipt.id, "tags": tags}}, label=receipt.policy)

    async def _predict_later(self, question: Question, tags: dict[str, Any], is_tensor: bool) -> Reply:
        if self._endpoint.is_shared:
            return _reply(await self._endpoint.ask(question), tags, is_tensor)
        return _reply(await self._batcher.gathered(question), tags, is_tensor)

    def _read(self, message: dict[str, Any]) -> tuple[Question, dict[str, Any], bool]:
        """(the question, the tags that came with it, whether it came as a tensor)."""
        data = message.get("data")
        if type(data) is not dict:
            raise UserError('"data" must be an object with "tensor" or "ndarray"; other payloads hold no observation')
        is_tensor = "tensor" in data
        if is_tensor == ("ndarray" in data):
            raise UserError('"data" must have either "tensor" or "ndarray"')
        given = _tensor(object_field(data, "tensor")) if is_tensor else _ndarray(data["ndarray"])
        meta = object_field(message, "meta")
        tags = object_field(meta, "tags")
        # They are sent back, and orjson writes no more than 254 levels.
        check_depth(tags, '"tags"')
        question = Question(
            observations=self._endpoint.check(given),
            id=text_field(meta, "puid"),
            sequence_id=text_field(tags, "sequence_id"),
            sequence_start=flag_field(tags, "sequence_start"),
            sequence_end=flag_field(tags, "sequence_end"),
            deterministic=optional_flag(tags, "deterministic"),
        )
        return question, tags, is_tensor


def failure(status: int, message: str) -> dict[str, Any]:
    """An error in the dialect's words."""
    reason = REASONS.get(status, "INTERNAL_ERROR")
    return {"status": {"code": status, "info": message, "reason": reason, "status": "FAILURE"}}


def read_feedback(message: dict[str, Any]) -> Feedback:
    """A reward for the request whose answer comes with it; clients leave out a reward of zero."""
    request, response = object_field(message, "request"), object_field(message, "response")
    asked, answered = object_field(request, "meta"), object_field(response, "meta")
    tags = object_field(asked, "tags") | object_field(answered, "tags")
    return Feedback(
        reward=reward_field(message, 0.0),
        id=text_field(answered, "puid") or text_field(asked, "puid"),
        sequence_id=text_field(tags, "sequence_id"),
        sequence_end=flag_field(tags, "sequence_end"),
        feedback_id=text_field(tags, "feedback_id"),
        truth=message.get("truth"),
    )


def _reply(answer: Answer, tags: dict[str, Any], is_tensor: bool) -> Reply:
    actions = answer.actions
    # The dialect's tensors have rows and columns, so that one choice is one column.
    table = actions.reshape(len(actions), -1) if actions.ndim != 2 else actions
    names = ["action"] if table.shape[1] == 1 else [f"action:{i}" for i in range(table.shape[1])]
    data: dict[str, Any] = {"names": names}
    if is_tensor:
        data["tensor"] = {"shape": table.shape, "values": table.ravel().tolist()}
    else:
        data["ndarray"] = table.tolist()
    meta = {
        "puid": answer.id,
        "tags": tags | {"policy": answer.policy, "version": answer.version, "propensity": answer.propensity},
        "routing": dict(answer.route),
        "requestPath": {answer.policy: answer.version},
        "metrics": [],
    }
    return as_json({"data": data, "meta": meta}, label=answer.policy)


def _tensor(tensor: dict[str, Any]) -> np.ndarray:
    shape, values = shape_of(tensor.get("shape"), "tensor"), tensor.get("values")
    if type(values) is not list:
        raise UserError('"tensor" must have "values", a list of numbers')
    numbers, _ = flattened(values, OBSERVATIONS)
    if len(numbers) != math.prod(shape):
        raise UserError(f'"tensor" has {len(numbers)} values, but its shape {list(shape)} has {math.prod(shape)}')
    return _array(numbers, shape)


def _ndarray(values: Any) -> np.ndarray:
    if type(values) is not list:
        raise UserError('"ndarray" must be a list of observations, each a list of numbers')
    return _array(*flattened(values, OBSERVATIONS))


def _array(numbers: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    return as_array(numbers, OBSERVATIONS).reshape(shape)
