"""The Open Inference Protocol V2 by REST: health, metadata, versions, inference with tensors as JSON or bytes.

Additions to the protocol: parameters of a question (`sequence_id`, `sequence_start`, `sequence_end`, `deterministic`)
and of an answer (`route`, written as `router=1/inner=0`, `policy`, `propensity`), and `POST /v2/models/NAME/feedback`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple

import numpy as np

from steppe.errors import UserError
from steppe.serve.admission import Gate, RequestRefused
from steppe.serve.endpoint import Endpoint
from steppe.serve.http import binary_tensors
from steppe.serve.http.replies import HttpReply, HttpRequest, answered, as_json, parsed
from steppe.serve.messages.exchange import Feedback, Metadata, PolicyAnswer, Question, Receipt
from steppe.serve.messages.fields import (
    feedback_of,
    object_field,
    optional_flag,
    question_of,
    reward_field,
    text_field,
)
from steppe.serve.messages.tensors import datatype_of, from_numbers, small_vector
from steppe.serve.question_batches import Batcher
from steppe.serve.routing.graph import PolicyGraph

EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "feedback"]
ACTION, OUTPUTS = "action", "outputs"
"""The outputs of a policy: its actions, and the numbers of its head, if it has one."""
UNSUPPORTED = {"classification": "class_count", "shared_memory_region": "shared memory"}
"""Parameters of unsupported extensions -> the extension's name in clients."""


class InferSignature(NamedTuple):
    """Names, outputs and input size of a model."""

    input: str
    outputs: tuple[str, ...]
    all_as_numbers: dict[str, bool]
    """The default outputs -> False, since they are sent as numbers and not as bytes."""
    is_vector: bool
    """Whether an observation is a vector of `size` numbers without bounds to check."""
    size: int


class OpenInferenceHandlers:
    """The handlers of /v2."""

    def __init__(self, endpoint: Endpoint, batcher: Batcher, gate: Gate, version: str) -> None:
        self._endpoint, self._batcher, self._gate = endpoint, batcher, gate
        self._server = {"name": "steppe", "version": version, "extensions": EXTENSIONS}
        self._signatures: dict[str | None, InferSignature] = {}
        """Signatures of the models that exist."""

    def server(self, request: HttpRequest) -> HttpReply:
        """GET /v2"""
        return as_json(self._server)

    def live(self, request: HttpRequest) -> HttpReply:
        """GET /v2/health/live"""
        return as_json({"live": True})

    def ready(self, request: HttpRequest) -> HttpReply:
        """GET /v2/health/ready: true from the start of the endpoint until the server begins to stop."""
        is_ready = self._endpoint.is_ready and not self._gate.is_draining
        return as_json({"ready": is_ready}, 200 if is_ready else 503)

    def model(self, request: HttpRequest) -> HttpReply:
        """GET /v2/models/NAME"""
        return as_json(metadata_json(self._endpoint.metadata(request.model, request.version)))

    def model_ready(self, request: HttpRequest) -> HttpReply:
        """GET /v2/models/NAME/ready"""
        metadata = self._endpoint.metadata(request.model, request.version)
        is_ready = metadata.ready and not self._gate.is_draining
        return as_json({"name": metadata.name, "ready": is_ready}, 200 if is_ready else 503)

    def index(self, request: HttpRequest) -> HttpReply:
        """POST /v2/repository/index: the models that can be asked for, the endpoint itself first."""
        wants_ready = optional_flag(parsed(request.body), "ready") if request.body else None
        return as_json(model_index(self._endpoint, wants_ready is True))

    async def load(self, request: HttpRequest) -> HttpReply:
        """POST /v2/repository/models/NAME/load: looks for newer versions, or puts `version` into service."""
        given = object_field(parsed(request.body), "parameters") if request.body else {}
        version, model = text_field(given, "version"), request.model or ""
        self._endpoint.load(model)
        if "version" in given:
            await self._endpoint.pin(model, version)
            return as_json({"news": []})
        return as_json({"news": await self._endpoint.reload()})

    def unload(self, request: HttpRequest) -> HttpReply:
        """POST /v2/repository/models/NAME/unload: refuses questions until `load`; for the whole endpoint only."""
        self._endpoint.unload(request.model or "")
        return as_json({})

    def infer(self, request: HttpRequest) -> HttpReply | Awaitable[HttpReply]:
        """POST /v2/models/NAME/infer"""
        length = request.header(binary_tensors.LENGTH)
        if length is None:
            message, rest = parsed(request.body), None
        else:
            message, rest = binary_tensors.split(request.body, length)
        question, wanted = self._read(message, rest, request)
        return answered(self._batcher, question, lambda answer: self._reply(answer, question, wanted))

    async def feedback(self, request: HttpRequest) -> HttpReply:
        """POST /v2/models/NAME/feedback"""
        feedback = read_feedback(parsed(request.body))
        self._signature_of(request.model)
        receipt = await self._endpoint.feedback(feedback)
        return as_json(receipt_json(receipt, self._endpoint.graph), label=receipt.policy)

    def _read(
        self, message: dict[str, Any], rest: memoryview | None, request: HttpRequest
    ) -> tuple[Question, dict[str, bool]]:
        """(question, wanted outputs -> whether as bytes)."""
        model = request.model
        signature = self._signatures.get(model) or self._signature_of(model)
        inputs = message.get("inputs")
        if type(inputs) is not list or len(inputs) != 1 or type(inputs[0]) is not dict:
            raise UserError(f'"inputs" must be a list of one tensor, "{signature.input}"')
        observations = self._observations(inputs[0], rest, signature, model)
        if len(message) == 1:
            wanted = signature.all_as_numbers
            return Question(observations, model=model, version=request.version, outputs=OUTPUTS in wanted), wanted
        id = text_field(message, "id")
        parameters = object_field(message, "parameters")
        wanted = _wanted(message, parameters, signature.outputs)
        if not parameters:
            return Question(observations, id, model=model, version=request.version, outputs=OUTPUTS in wanted), wanted
        if parameters.get("sequence_id") == 0:
            # Clients of this protocol may send zero if they have no episodes.
            parameters = parameters | {"sequence_id": None}
        return question_of(parameters, observations, id, model, request.version, OUTPUTS in wanted), wanted

    def _observations(
        self, tensor: dict[str, Any], rest: memoryview | None, signature: InferSignature, model: str | None
    ) -> np.ndarray:
        if (
            rest is None
            and signature.is_vector
            and tensor.get("name") == signature.input
            and "parameters" not in tensor
        ):
            quick = small_vector(tensor.get("data"), tensor.get("shape"), tensor.get("datatype"))
            # The result is what `check` would return.
            if quick is not None and quick.shape[1] == signature.size:
                return quick
        return self._endpoint.check(_tensor(tensor, signature.input, rest), model)

    def _signature_of(self, model: str | None) -> InferSignature:
        metadata = self._endpoint.metadata(model)
        observation, outputs = metadata.inputs[0], tuple(each.name for each in metadata.outputs)
        is_vector = observation.datatype == "FP32" and len(observation.shape) == 2
        signature = InferSignature(
            observation.name, outputs, dict.fromkeys(outputs, False), is_vector, observation.shape[-1]
        )
        self._signatures[model] = signature
        return signature

    def _reply(self, answer: PolicyAnswer, question: Question, wanted: dict[str, bool]) -> HttpReply:
        outputs: list[dict[str, Any]] = []
        blobs: list[bytes] = []
        for name, as_bytes in wanted.items():
            array = answer.actions if name == ACTION else answer.outputs
            if array is None:
                continue
            tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": datatype_of(array.dtype)}
            if as_bytes:
                blobs.append(tensor_bytes(array))
                tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
            else:
                tensor["data"] = array.tolist() if array.ndim == 1 else array.ravel().tolist()
            outputs.append(tensor)
        message = {
            "model_name": question.model or self._endpoint.name,
            "model_version": answer.version,
            "id": answer.id,
            "parameters": answer_parameters(answer),
            "outputs": outputs,
        }
        if blobs:
            return binary_tensors.reply(message, blobs, answer.policy)
        return as_json(message, label=answer.policy)


def model_index(endpoint: Endpoint, wants_ready: bool) -> list[dict[str, str]]:
    """The repository's index: the endpoint itself first, then the nodes of its graph."""
    models = []
    for name in endpoint.models():
        metadata = endpoint.metadata(name)
        state, reason = ("READY", "") if metadata.ready else ("UNAVAILABLE", "unloaded")
        version = (metadata.versions or ("",))[-1]
        models.append({"name": name, "version": version, "state": state, "reason": reason})
    return [each for each in models if not wants_ready or each["state"] == "READY"]


def metadata_json(metadata: Metadata) -> dict[str, Any]:
    """A model's metadata in the protocol's format, with Steppe's own facts under "properties"."""

    def tensors(side: Any) -> list[dict[str, Any]]:
        return [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in side]

    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": tensors(metadata.inputs),
        "outputs": tensors(metadata.outputs),
        "properties": metadata.properties,
    }


def answer_parameters(answer: PolicyAnswer) -> dict[str, Any]:
    """Route, policy and propensity of an answer, as parameters, which cannot hold lists."""
    return {"route": route_text(answer.route), "policy": answer.policy, "propensity": answer.propensity}


def read_feedback(message: dict[str, Any]) -> Feedback:
    """Reads a reward sent to /v2."""
    return feedback_of(message, reward_field(message), text_field(message, "id"), message.get("truth"))


def route_text(route: Iterable[tuple[str, int]]) -> str:
    """A route as text: the index of the branch at each router on the path."""
    return "/".join([f"{name}={branch}" for name, branch in route])


def receipt_json(receipt: Receipt, graph: PolicyGraph) -> dict[str, Any]:
    """A receipt in JSON."""
    return {
        "applied": receipt.applied,
        "id": receipt.id,
        "policy": receipt.policy,
        "route": route_text(graph.indexed(receipt.route)),
        "episode_return": receipt.episode_return,
    }


def check_supported(parameters: dict[str, Any], output: str) -> None:
    """Refuses parameters of an output that belong to unsupported extensions and would change the answer."""
    for name, known_as in UNSUPPORTED.items():
        if parameters.get(name) is not None:
            raise UserError(
                f'"{name}" ({known_as}) of the output "{output}" belongs to an extension that is not supported; leave '
                "it out"
            )


def tensor_bytes(array: np.ndarray) -> bytes:
    """The array's bytes in the protocol's format: little-endian, in row order."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _tensor(tensor: dict[str, Any], expected: str, rest: memoryview | None) -> np.ndarray:
    name = tensor.get("name")
    if name != expected:
        raise UserError(f'there is no input {_shown(name)}; the input is "{expected}"')
    size = object_field(tensor, "parameters").get("binary_data_size")
    if size is None:
        if rest:
            raise UserError(f'bytes come after the JSON, but "{name}" has no "binary_data_size"')
        return from_numbers(tensor.get("data"), tensor.get("shape"), tensor.get("datatype"), expected)
    if rest is None:
        raise UserError(
            f'"{name}" is sent as bytes; the header Inference-Header-Content-Length must say where they begin'
        )
    given = binary_tensors.BinaryTensors(rest)
    array = given.take(tensor, size, expected)
    given.end()
    return array


def _wanted(message: dict[str, Any], parameters: dict[str, Any], names: tuple[str, ...]) -> dict[str, bool]:
    """The wanted outputs, all if none is named -> whether as bytes."""
    as_bytes = optional_flag(parameters, "binary_data_output") is True
    outputs = message.get("outputs")
    if outputs is None or outputs == []:
        return dict.fromkeys(names, as_bytes)
    if type(outputs) is not list:
        raise UserError('"outputs" must be a list of the outputs that are wanted')
    wanted = {}
    for each in outputs:
        name = each.get("name") if type(each) is dict else None
        if name not in names:
            raise UserError(f"there is no output {_shown(name)}; there are {', '.join(names)}")
        given = object_field(each, "parameters")
        check_supported(given, str(name))
        own = optional_flag(given, "binary_data")
        wanted[str(name)] = as_bytes if own is None else own
    return wanted


def _shown(name: Any) -> str:
    """A client's name for a tensor, shortened for an error."""
    if type(name) is not str:
        return "without a name"
    return f'"{name[:100]}"'


def no_such_path(path: str) -> RequestRefused:
    """The refusal of an unknown path."""
    return RequestRefused(404, f'there is no "{path[:100]}" here; /openapi.json lists what there is')
