"""The Open Inference Protocol V2 and feedback by gRPC, with the endpoint, token and limits of HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from steppe.errors import UserError
from steppe.serve.admission import Gate
from steppe.serve.endpoint import Endpoint
from steppe.serve.grpc import messages
from steppe.serve.grpc.guard import Guard, Method
from steppe.serve.http.open_inference import (
    ACTION,
    EXTENSIONS,
    OUTPUTS,
    answer_parameters,
    check_supported,
    model_index,
    tensor_bytes,
)
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question
from steppe.serve.messages.fields import question_of, text_field
from steppe.serve.messages.tensors import datatype_of, from_bytes, from_numbers
from steppe.serve.question_batches import Batcher

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
"""The field for numbers of each type that are not sent as bytes."""
MAX_DIMENSIONS = 64
"""Most numbers in a shape."""


class OpenInferenceMethods:
    """The methods; each takes a message and returns (message, policy that answered)."""

    def __init__(self, endpoint: Endpoint, gate: Gate, batcher: Batcher, version: str) -> None:
        self._endpoint, self._gate, self._batcher = endpoint, gate, batcher
        self._version = version

    def handlers(self, guard: Guard) -> list[Any]:
        """The handlers for a gRPC server."""
        own: dict[str, tuple[str, Method]] = {
            "ServerLive": ("health", self._live),
            "ServerReady": ("health", self._ready),
            "ModelReady": ("health", self._model_ready),
            "ServerMetadata": ("metadata", self._server),
            "ModelMetadata": ("metadata", self._model),
            "ModelInfer": ("infer", self._infer),
            "RepositoryIndex": ("metadata", self._index),
            "RepositoryModelLoad": ("load", self._load),
            "RepositoryModelUnload": ("load", self._unload),
            "SendFeedback": ("feedback", self._feedback),
        }
        return [guard.service(name, own) for name in (messages.INFERENCE, messages.FEEDBACK)]

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

    async def _index(self, request: Any) -> tuple[Any, str]:
        return messages.RepositoryIndexResponse(models=model_index(self._endpoint, request.ready)), ""

    async def _load(self, request: Any) -> tuple[Any, str]:
        version = {name: messages.parameter_value(each) for name, each in request.parameters.items()}
        self._endpoint.load(request.model_name)
        if "version" in version:
            await self._endpoint.pin(request.model_name, text_field(version, "version"))
        else:
            await self._endpoint.reload()
        return messages.RepositoryModelLoadResponse(), ""

    async def _unload(self, request: Any) -> tuple[Any, str]:
        self._endpoint.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse(), ""

    async def _infer(self, request: Any) -> tuple[Any, str]:
        model = request.model_name or None
        metadata = self._endpoint.metadata(model)
        wanted = _wanted(request, [each.name for each in metadata.outputs])
        question = self._question(request, model, metadata.inputs[0].name, OUTPUTS in wanted)
        answer = await self._batcher.ask(question)
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
        parameters = {name: messages.parameter_value(each) for name, each in request.parameters.items()}
        if parameters.get("sequence_id") == 0:
            # Clients of this protocol may send zero if they have no episodes.
            del parameters["sequence_id"]
        observations = self._endpoint.check(_tensor(request, expected), model)
        return question_of(parameters, observations, request.id or None, model, request.model_version or None, outputs)


def _tensor(request: Any, expected: str) -> np.ndarray:
    if len(request.inputs) != 1:
        raise UserError(f'there must be one input, "{expected}"')
    tensor = request.inputs[0]
    if tensor.name != expected:
        raise UserError(f'there is no input "{tensor.name[:100]}"; the input is "{expected}"')
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise UserError(f'the shape of "{expected}" may have at most {MAX_DIMENSIONS} numbers')
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
    """The names of the wanted outputs; all if none is named."""
    for each in request.outputs:
        if each.name not in names:
            raise UserError(f'there is no output "{each.name[:100]}"; there are {", ".join(names)}')
        check_supported({name: messages.parameter_value(value) for name, value in each.parameters.items()}, each.name)
    return [each.name for each in request.outputs] or names


def _response(answer: PolicyAnswer, model: str, wanted: list[str], as_bytes: bool) -> Any:
    response = messages.ModelInferResponse(model_name=model, model_version=answer.version, id=answer.id)
    for name, value in answer_parameters(answer).items():
        if isinstance(value, str):
            response.parameters[name].string_param = value
        else:
            response.parameters[name].double_param = value
    for name in wanted:
        array = answer.actions if name == ACTION else answer.outputs
        if array is None:
            continue
        word = datatype_of(array.dtype)
        tensor = response.outputs.add(name=name, datatype=word, shape=array.shape)
        if as_bytes or word not in CONTENTS:
            response.raw_output_contents.append(tensor_bytes(array))
        else:
            getattr(tensor.contents, CONTENTS[word]).extend(array.ravel().tolist())
    return response


def _json(text: str) -> Any:
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError as error:
        raise UserError(f'"truth" must be JSON: {error}') from None
