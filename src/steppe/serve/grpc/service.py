"""The Open Inference Protocol V2 by gRPC, and feedback: the same endpoint, token and limits as by HTTP.

To the server every method is one that takes a stream, although its clients send one message (on the wire both look the
same): such a method is called as soon as the metadata is there, so that no message is received, let alone parsed,
before its token was checked. gRPC's flow control holds the rest of a message back at the sender until it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import numpy as np
import orjson

from steppe.errors import MissingExtra, UserError
from steppe.serve.admission import Gate, Refused, Room
from steppe.serve.batching import Batcher
from steppe.serve.endpoint import Endpoint
from steppe.serve.exchange import Answer, Feedback, Question
from steppe.serve.grpc import messages, wire
from steppe.serve.http.observing import Observer
from steppe.serve.http.open_inference import ACTION, EXTENSIONS, OUTPUTS, labels, raw
from steppe.serve.http.replies import Reply, flag_field, optional_flag, status_of, text_field
from steppe.serve.tensors import from_bytes, from_numbers, word_of

try:
    import grpc
except ImportError as error:
    raise MissingExtra("gRPC", "serve") from error

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Where the numbers of a type are, when they are not sent as bytes."""
PROBES = {"ServerLive", "ServerReady"}
"""Answered when nothing else is, and to anybody; what they are sent is never read."""
MOST_DIMENSIONS = 64
"""How many numbers a shape may have."""

Method = Callable[[Any], Awaitable[tuple[Any, str]]]

log = logging.getLogger(__name__)


class Service:
    """The methods: each takes a message and returns (a message, the policy that answered)."""

    def __init__(self, endpoint: Endpoint, gate: Gate, batcher: Batcher, observer: Observer, version: str) -> None:
        self._endpoint, self._gate, self._batcher, self._observer = endpoint, gate, batcher, observer
        self._version = version

    def handlers(self) -> list[Any]:
        """What a gRPC server is given."""
        own: dict[str, tuple[str, Method]] = {
            "ServerLive": ("health", self._live),
            "ServerReady": ("health", self._ready),
            "ModelReady": ("health", self._model_ready),
            "ServerMetadata": ("metadata", self._server),
            "ModelMetadata": ("metadata", self._model),
            "ModelInfer": ("infer", self._infer),
            "SendFeedback": ("feedback", self._feedback),
        }
        return [
            grpc.method_handlers_generic_handler(
                service,
                {
                    method.name: grpc.stream_unary_rpc_method_handler(
                        self._guarded(method, *own[method.name]),
                        response_serializer=method.response.SerializeToString,
                    )
                    for method in messages.methods(service)
                },
            )
            for service in (messages.INFERENCE, messages.FEEDBACK)
        ]

    def _guarded(self, rpc: messages.Method, operation: str, method: Method) -> Any:
        """The method behind the gate; what goes wrong becomes a status with one sentence."""
        gate, name, known = self._gate, rpc.name, wire.layout(rpc.request.DESCRIPTOR)

        async def call(_: Any, context: Any) -> Any:
            started, address = perf_counter(), _address(context.peer())
            try:
                if name in PROBES:
                    response, policy = await method(None)
                else:
                    response, policy = await enter_and_call(context, address)
            except Exception as error:
                status, words = status_of(error), str(error)
                self._observer.record(operation, Reply(status, b"", []), perf_counter() - started, address, name)
                if status == 500:
                    log.error("a call of %s failed", name, exc_info=error)
                    words = "the endpoint had a fault of its own; its log says more"
            else:
                self._observer.record(operation, Reply(200, b"", [], policy), perf_counter() - started, address, name)
                return response
            # Not where the error is handled: what `abort` raises would keep it, and its traceback the message, until
            # the next full garbage collection.
            return await context.abort(CODES.get(status, grpc.StatusCode.INTERNAL), words)

        async def enter_and_call(context: Any, address: str) -> Any:
            if gate.needs_token:
                gate.check_token(_token(context.invocation_metadata()))
            gate.begin(address)
            try:
                with Room(gate, address) as room:
                    data = await self._received(context)
                    room.grow(len(data))
                    return await method(wire.parse(data, rpc.request, known))
            finally:
                gate.end(address)

        return call

    async def _received(self, context: Any) -> bytes:
        """The call's one message as bytes; it must arrive in time."""
        seconds = self._gate.limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                data = await context.read()
        except TimeoutError:
            raise Refused(408, f"the message did not arrive within {seconds:g} s") from None
        if not isinstance(data, bytes):
            raise UserError("the call ended without a message")
        return data

    async def _live(self, request: Any) -> tuple[Any, str]:
        return messages.ServerLiveResponse(live=True), ""

    async def _ready(self, request: Any) -> tuple[Any, str]:
        return messages.ServerReadyResponse(ready=self._endpoint.is_ready and not self._gate.is_draining), ""

    async def _model_ready(self, request: Any) -> tuple[Any, str]:
        metadata = self._endpoint.metadata(request.name or None, request.version or None)
        return messages.ModelReadyResponse(ready=metadata.ready and not self._gate.is_draining), ""

    async def _server(self, request: Any) -> tuple[Any, str]:
        return messages.ServerMetadataResponse(name="steppe", version=self._version, extensions=EXTENSIONS), ""

    async def _model(self, request: Any) -> tuple[Any, str]:
        metadata = self._endpoint.metadata(request.name or None, request.version or None)
        response = messages.ModelMetadataResponse(
            name=metadata.name, versions=metadata.versions, platform=metadata.platform
        )
        for side, tensors in ((response.inputs, metadata.inputs), (response.outputs, metadata.outputs)):
            for each in tensors:
                side.add(name=each.name, datatype=each.datatype, shape=each.shape)
        return response, ""

    async def _infer(self, request: Any) -> tuple[Any, str]:
        model = request.model_name or None
        metadata = self._endpoint.metadata(model)
        wanted = _wanted(request, [each.name for each in metadata.outputs])
        question = self._question(request, model, metadata.inputs[0].name, OUTPUTS in wanted)
        if self._endpoint.is_shared:
            answer = await self._endpoint.ask(question)
        elif self._batcher.gathers:
            answer = await self._batcher.gathered(question)
        else:
            answer = self._batcher.answer(question)
        as_bytes = bool(request.raw_input_contents)
        return _response(answer, request.model_name or self._endpoint.name, wanted, as_bytes), answer.policy

    async def _feedback(self, request: Any) -> tuple[Any, str]:
        receipt = await self._endpoint.feedback(
            Feedback(
                reward=request.reward,
                id=request.id or None,
                sequence_id=request.sequence_id or None,
                sequence_end=request.sequence_end,
                feedback_id=request.feedback_id or None,
                truth=_json(request.truth),
            )
        )
        response = messages.FeedbackResponse(id=receipt.id, sequence_id=request.sequence_id, applied=receipt.applied)
        return response, receipt.policy

    def _question(self, request: Any, model: str | None, expected: str, outputs: bool) -> Question:
        parameters = {name: _value(each) for name, each in request.parameters.items()}
        sequence = parameters.get("sequence_id")
        return Question(
            observations=self._endpoint.check(_tensor(request, expected), model),
            id=request.id or None,
            # Clients of this protocol that have no episodes may say so by a zero.
            sequence_id=None if sequence is None or sequence == 0 else text_field(parameters, "sequence_id"),
            sequence_start=flag_field(parameters, "sequence_start"),
            sequence_end=flag_field(parameters, "sequence_end"),
            deterministic=optional_flag(parameters, "deterministic"),
            model=model,
            version=request.model_version or None,
            outputs=outputs,
        )


def _tensor(request: Any, expected: str) -> np.ndarray:
    if len(request.inputs) != 1:
        raise UserError(f'there must be one input, "{expected}"')
    tensor = request.inputs[0]
    if tensor.name != expected:
        raise UserError(f'there is no input "{tensor.name[:100]}"; the input is "{expected}"')
    if len(tensor.shape) > MOST_DIMENSIONS:
        raise UserError(f'the shape of "{expected}" may have at most {MOST_DIMENSIONS} numbers')
    shape, blobs = list(tensor.shape), request.raw_input_contents
    if blobs:
        if len(blobs) != 1:
            raise UserError(f'"raw_input_contents" must have one entry, for "{expected}"')
        return from_bytes(blobs[0], shape, tensor.datatype, expected)
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise UserError(f'"{expected}" can only be sent as {", ".join(CONTENTS)}, or as bytes in "raw_input_contents"')
    return from_numbers(list(getattr(tensor.contents, field)), shape, tensor.datatype, expected)


def _wanted(request: Any, names: list[str]) -> list[str]:
    """The outputs that are asked for; the action where none is named."""
    for each in request.outputs:
        if each.name not in names:
            raise UserError(f'there is no output "{each.name[:100]}"; there are {", ".join(names)}')
    return [each.name for each in request.outputs] or [ACTION]


def _response(answer: Answer, model: str, wanted: list[str], as_bytes: bool) -> Any:
    response = messages.ModelInferResponse(model_name=model, model_version=answer.version, id=answer.id)
    for name, value in labels(answer).items():
        if isinstance(value, str):
            response.parameters[name].string_param = value
        else:
            response.parameters[name].double_param = value
    for name in wanted:
        array = answer.actions if name == ACTION else answer.outputs
        if array is None:
            continue
        word = word_of(array.dtype)
        tensor = response.outputs.add(name=name, datatype=word, shape=array.shape)
        if as_bytes or word not in CONTENTS:
            response.raw_output_contents.append(raw(array))
        else:
            getattr(tensor.contents, CONTENTS[word]).extend(array.ravel().tolist())
    return response


def _value(parameter: Any) -> Any:
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def _json(text: str) -> Any:
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError as error:
        raise UserError(f'"truth" must be JSON: {error}') from None


def _token(metadata: Any) -> str | None:
    return next((value for name, value in metadata or () if name == "authorization"), None)


def _address(peer: str) -> str:
    """ipv4:127.0.0.1:40000 without the port."""
    return peer.partition(":")[2].rpartition(":")[0] or peer
