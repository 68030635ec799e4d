"""A client of the Open Inference Protocol V2 by REST: small observations as JSON, large ones as bytes after it."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from steppe.errors import UserError
from steppe.serve.clients._base import (
    EndpointAccess,
    EndpointFault,
    ModelDescription,
    checked_rows,
    sequence_parameters,
)
from steppe.serve.clients.connection import ClientConnection, encoded
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question
from steppe.serve.messages.tensors import DTYPES, from_numbers

BINARY = "binary_tensor_data"
"""The extension for tensors as bytes."""
OWN_SERVER = "steppe"
SMALL = 64
"""Up to so many numbers JSON is as fast as bytes, and people can read it in a log."""
HEADER_LENGTH = "Inference-Header-Content-Length"


class ModelTensors(NamedTuple):
    """Names and types of a model's tensors."""

    name: str
    input: str
    datatype: str
    action: str
    """The output with the actions."""
    as_bytes: bool
    """Whether the server accepts tensors as bytes."""


class OpenInferenceClient:
    """A client of any V2 server; only Steppe's own understands feedback."""

    def __init__(self, access: EndpointAccess) -> None:
        self._access = access
        self._connection = ClientConnection(access)
        self._model: ModelTensors | None = None

    def describe(self) -> ModelDescription:
        """Asks for the server's and the model's metadata."""
        server = self._connection.ask("GET", "/v2")
        is_own = server.get("name") == OWN_SERVER
        name = self._access.model or self._chosen_model(is_own)
        metadata = self._connection.ask("GET", f"/v2/models/{quote(name, safe='')}")
        extensions = server.get("extensions")
        as_bytes = isinstance(extensions, list) and BINARY in extensions
        self._model, shape = read_metadata(metadata, name, as_bytes)
        properties = metadata.get("properties")
        environment = properties.get("environment") if isinstance(properties, dict) else None
        environment = environment if environment and isinstance(environment, str) else None
        return ModelDescription(name, shape, applies_once=is_own, takes_feedback=is_own, environment=environment)

    def answer(self, question: Question) -> PolicyAnswer:
        """Sends one `infer` request."""
        model = self._described()
        body, headers = infer_request(question, model)
        reply = self._connection.send("POST", f"/v2/models/{quote(model.name, safe='')}/infer", body, headers)
        return read_answer(self._connection.parsed(reply), question, model)

    def feedback(self, feedback: Feedback) -> None:
        """Sends feedback, which is Steppe's addition to the protocol."""
        path = f"/v2/models/{quote(self._described().name, safe='')}/feedback"
        self._connection.tell(path, feedback_message(feedback))

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _described(self) -> ModelTensors:
        if self._model is None:
            self.describe()
        assert self._model is not None
        return self._model

    def _chosen_model(self, is_own: bool) -> str:
        """The name of a server's only model; Steppe's own lists the whole endpoint first."""
        index = self._connection.listed("POST", "/v2/repository/index")
        names = list(dict.fromkeys(str(entry["name"]) for entry in index if "name" in entry))
        if not names or (len(names) > 1 and not is_own):
            listed = f"has the models {', '.join(names)}" if names else "does not say which models it has"
            raise UserError(f"{self._access.url} {listed}; choose one by --model")
        return names[0]


def infer_request(question: Question, model: ModelTensors) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of an `infer` request."""
    observations = np.ascontiguousarray(question.observations, DTYPES[model.datatype])
    tensor: dict[str, Any] = {"name": model.input, "shape": list(observations.shape), "datatype": model.datatype}
    message: dict[str, Any] = {"id": question.id} if question.id is not None else {}
    if parameters := sequence_parameters(question):
        message["parameters"] = parameters
    message["inputs"] = [tensor]
    message["outputs"] = [{"name": model.action}]
    if not model.as_bytes or observations.size <= SMALL:
        tensor["data"] = observations.ravel().tolist()
        return encoded(message), {"Content-Type": "application/json"}
    tensor["parameters"] = {"binary_data_size": observations.nbytes}
    header = encoded(message)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return header + observations.tobytes(), headers


def read_answer(data: dict[str, Any], question: Question, model: ModelTensors) -> PolicyAnswer:
    """Reads the answer of an `infer` response."""
    outputs = data.get("outputs")
    named = {each.get("name"): each for each in outputs if isinstance(each, dict)} if isinstance(outputs, list) else {}
    if model.action not in named:
        raise EndpointFault(f'the endpoint\'s answer has no output "{model.action}"')
    tensor = named[model.action]
    actions = read_tensor(tensor, "data", model.action)
    given = data.get("parameters")
    return answer_of(
        checked_rows(actions, question),
        str(data.get("id") or question.id or ""),
        given if isinstance(given, dict) else {},
        str(data.get("model_name", model.name)),
        str(data.get("model_version", "")),
    )


def read_tensor(tensor: dict[str, Any], values: str, name: str) -> np.ndarray:
    """Reads a tensor of an answer; `EndpointFault` if its parts do not fit together."""
    try:
        return from_numbers(tensor.get(values), tensor.get("shape"), tensor.get("datatype", "FP64"), name)
    except UserError as error:
        raise EndpointFault(f"the endpoint sent an answer that cannot be read: {error}") from None


def answer_of(actions: np.ndarray, id: str, parameters: dict[str, Any], model: str, version: str) -> PolicyAnswer:
    """An answer with the endpoint's account of who gave it."""
    propensity = parameters.get("propensity")
    return PolicyAnswer(
        id=id,
        actions=actions,
        route=read_route(parameters.get("route")),
        policy=str(parameters.get("policy", model)),
        version=str(parameters.get("version", version)),
        propensity=float(propensity) if isinstance(propensity, int | float) else float("nan"),
        outputs=None,
    )


def read_route(text: Any) -> tuple[tuple[str, int], ...]:
    """Reads a route such as `router=1/inner=0`; () if there is none."""
    if not isinstance(text, str) or not text:
        return ()
    steps = []
    for step in text.split("/"):
        name, _, branch = step.rpartition("=")
        if not branch.lstrip("-").isdecimal():
            return ()
        steps.append((name, int(branch)))
    return tuple(steps)


def feedback_message(feedback: Feedback) -> dict[str, Any]:
    """Feedback as JSON, with the fields that are set."""
    words = {
        "id": feedback.id,
        "sequence_id": feedback.sequence_id,
        "sequence_end": feedback.sequence_end or None,
        "feedback_id": feedback.feedback_id,
        "truth": feedback.truth,
    }
    return {"reward": feedback.reward} | {name: value for name, value in words.items() if value is not None}


def read_metadata(metadata: dict[str, Any], name: str, as_bytes: bool) -> tuple[ModelTensors, tuple[int, ...] | None]:
    """(tensors of the model, shape of one observation), from a model's metadata."""
    inputs, outputs = metadata.get("inputs"), metadata.get("outputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(outputs, list) or not outputs:
        raise UserError(f'the model "{name}" must have one input, the observation, and an output, the action')
    try:
        seen, datatype, shape = str(inputs[0]["name"]), str(inputs[0]["datatype"]), inputs[0]["shape"]
        names = [str(each["name"]) for each in outputs]
        # The first number is the number of observations in a question.
        sizes = tuple(int(size) for size in shape)[1:]
    except (KeyError, TypeError, ValueError):
        raise EndpointFault(f'the metadata of the model "{name}" is invalid') from None
    if datatype not in DTYPES:
        raise UserError(f'the model "{name}" takes {datatype}, which observations cannot be')
    action = next((each for each in names if each in ("action", "actions")), names[0])
    return ModelTensors(name, seen, datatype, action, as_bytes), None if -1 in sizes else sizes
