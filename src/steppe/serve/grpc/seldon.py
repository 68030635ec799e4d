"""The Seldon v1 dialect by gRPC: `Predict` and `SendFeedback` of seldon.protos.Seldon and seldon.protos.Model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.serve.endpoint import Endpoint
from steppe.serve.grpc import messages
from steppe.serve.grpc.guard import Guard, Method
from steppe.serve.messages import seldon_dialect as dialect
from steppe.serve.messages.exchange import PolicyAnswer
from steppe.serve.messages.tensors import MAX_DIMENSIONS
from steppe.serve.question_batches import Batcher


class SeldonMethods:
    """The methods, which both services share."""

    def __init__(self, endpoint: Endpoint, batcher: Batcher) -> None:
        self._endpoint, self._batcher = endpoint, batcher

    def handlers(self, guard: Guard) -> list[Any]:
        """The handlers for a gRPC server."""
        own: dict[str, tuple[str, Method]] = {
            "Predict": ("infer", self._predict),
            "SendFeedback": ("feedback", self._feedback),
        }
        return [guard.service(name, own, None) for name in (messages.SELDON, messages.SELDON_MODEL)]

    async def _predict(self, request: Any) -> tuple[Any, str]:
        kind = _payload(request)
        given = request.data.tensor if kind == "tensor" else request.data.ndarray
        observations = self._endpoint.check(
            _from_tensor(given) if kind == "tensor" else dialect.from_ndarray(_items(given))
        )
        meta = _meta(request)
        answer = await self._batcher.ask(dialect.question(meta, observations))
        return _response(answer, meta["tags"], kind), answer.policy

    async def _feedback(self, request: Any) -> tuple[Any, str]:
        message: dict[str, Any] = {"reward": request.reward}
        for name in ("request", "response"):
            message[name] = {"meta": _meta(getattr(request, name))}
        if request.HasField("truth"):
            message["truth"] = _truth(request.truth)
        receipt = await self._endpoint.feedback(dialect.feedback(message))
        response = messages.SeldonMessage()
        response.meta.puid = receipt.id
        _set_tags(response.meta, dialect.receipt_tags(receipt))
        return response, receipt.policy


def _payload(request: Any) -> str:
    """The payload with the observations: "tensor" or "ndarray"."""
    kind = request.WhichOneof("data_oneof")
    kind = request.data.WhichOneof("data_oneof") if kind == "data" else kind
    if kind not in ("tensor", "ndarray"):
        raise UserError('"data" must have "tensor" or "ndarray"; other payloads hold no observation')
    return str(kind)


def _from_tensor(tensor: Any) -> np.ndarray:
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise UserError(f'the shape of "tensor" may have at most {MAX_DIMENSIONS} numbers')
    return dialect.from_tensor(list(tensor.shape), list(tensor.values))


def _meta(message: Any) -> dict[str, Any]:
    """The `meta` of a message in plain values."""
    return {"puid": message.meta.puid, "tags": {name: _plain(each) for name, each in message.meta.tags.items()}}


def _plain(value: Any) -> Any:
    """The JSON value of a google.protobuf.Value."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return _items(value.list_value)
    if kind == "struct_value":
        return {name: _plain(each) for name, each in value.struct_value.fields.items()}
    if kind in (None, "null_value"):
        return None
    plain = getattr(value, kind)
    if kind == "number_value" and not math.isfinite(plain):
        raise UserError("this dialect has no NaN and no infinity")
    return plain


def _items(values: Any) -> list[Any]:
    return [_plain(each) for each in values.values]


def _truth(message: Any) -> Any:
    """The message in JSON, as HTTP would carry it."""
    from google.protobuf import json_format

    try:
        return json_format.MessageToDict(message)
    except (json_format.Error, ValueError):
        raise UserError('"truth" has a number that JSON cannot hold') from None


def _response(answer: PolicyAnswer, tags: dict[str, Any], kind: str) -> Any:
    table, names = dialect.named_table(answer.actions)
    response = messages.SeldonMessage()
    response.data.names.extend(names)
    if kind == "tensor":
        response.data.tensor.shape.extend(table.shape)
        response.data.tensor.values.extend(table.ravel().tolist())
    else:
        for row in table.tolist():
            _set(response.data.ndarray.values.add(), row)
    meta = response.meta
    meta.puid = answer.id
    _set_tags(meta, dialect.answer_tags(answer, tags))
    for router, branch in answer.route:
        meta.routing[router] = branch
    meta.requestPath[answer.policy] = answer.version
    return response


def _set_tags(meta: Any, tags: dict[str, Any]) -> None:
    for name, value in tags.items():
        _set(meta.tags[name], value)


def _set(target: Any, value: Any) -> None:
    """Stores a JSON value in a google.protobuf.Value."""
    match value:
        case None:
            target.null_value = 0
        case bool():
            target.bool_value = value
        case int() | float():
            target.number_value = value
        case str():
            target.string_value = value
        case dict():
            target.struct_value.SetInParent()
            for name, each in value.items():
                _set(target.struct_value.fields[name], each)
        case _:
            target.list_value.SetInParent()
            for each in value:
                _set(target.list_value.values.add(), each)
