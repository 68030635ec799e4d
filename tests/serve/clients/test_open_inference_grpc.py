from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import pytest

from steppe.errors import UserError
from steppe.serve.clients import EndpointAccess, EndpointAway, EndpointFault, EpisodeLost
from steppe.serve.messages.exchange import Feedback, Question

grpc = pytest.importorskip("grpc", reason="the extra serve is not installed")

from steppe.serve.clients.open_inference_grpc import OpenInferenceGrpcClient  # noqa: E402
from steppe.serve.grpc import messages  # noqa: E402

QUESTION = Question(np.array([[1, 2, 3, 4]], np.float32), id="q", sequence_id="e", sequence_start=True)


class Scripted:
    """A gRPC server with scripted methods, and the messages that it received."""

    def __init__(self, server_name: str = "other") -> None:
        self.heard: list[tuple[str, Any, dict[str, str]]] = []
        metadata = messages.ModelMetadataResponse(name="walker")
        metadata.inputs.add(name="obs", datatype="FP32", shape=[-1, 4])
        metadata.outputs.add(name="action", datatype="INT64", shape=[-1])
        answer = messages.ModelInferResponse(model_name="walker", model_version="3", id="q")
        answer.outputs.add(name="action", datatype="INT64", shape=[1])
        answer.raw_output_contents.append(np.array([1], np.int64).tobytes())
        self.answers: dict[str, Any] = {
            "ServerMetadata": messages.ServerMetadataResponse(name=server_name),
            "ModelMetadata": metadata,
            "ModelInfer": answer,
            "SendFeedback": messages.FeedbackResponse(applied=True),
        }
        self.refusals: dict[str, tuple[Any, str]] = {}

    def method(self, name: str) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            self.heard.append((name, request, dict(context.invocation_metadata())))
            if name in self.refusals:
                context.abort(*self.refusals[name])
            return self.answers[name]

        return call


@contextlib.contextmanager
def client_of(scripted: Scripted, **access: Any) -> Iterator[OpenInferenceGrpcClient]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    for service in (messages.INFERENCE, messages.FEEDBACK):
        handlers = {
            each.name: grpc.unary_unary_rpc_method_handler(
                scripted.method(each.name), each.request.FromString, each.response.SerializeToString
            )
            for each in messages.methods(service)
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with contextlib.closing(OpenInferenceGrpcClient(EndpointAccess(f"127.0.0.1:{port}", **access))) as client:
            yield client
    finally:
        server.stop(None).wait()


def test_a_question_is_sent_as_bytes_and_its_answer_is_read() -> None:
    scripted = Scripted()
    scripted.answers["ModelInfer"].parameters["route"].string_param = "router=2"
    scripted.answers["ModelInfer"].parameters["propensity"].double_param = 0.9
    with client_of(scripted, model="walker", token="t" * 16) as client:
        described = client.describe()
        answer = client.answer(QUESTION)
    assert (described.model, described.shape, described.takes_feedback) == ("walker", (4,), False)
    name, request, metadata = scripted.heard[-1]
    assert (name, request.model_name, request.id) == ("ModelInfer", "walker", "q")
    assert request.raw_input_contents[0] == QUESTION.observations.tobytes()
    assert request.parameters["sequence_id"].string_param == "e"
    assert request.parameters["sequence_start"].bool_param is True
    assert metadata["authorization"] == "Bearer " + "t" * 16
    assert (answer.id, answer.route, answer.propensity, answer.version) == ("q", (("router", 2),), 0.9, "3")
    np.testing.assert_array_equal(answer.actions, [1])


def test_answers_may_come_as_numbers() -> None:
    scripted = Scripted()
    answer = messages.ModelInferResponse()
    answer.outputs.add(name="action", datatype="INT64", shape=[1]).contents.int64_contents.append(0)
    scripted.answers["ModelInfer"] = answer
    with client_of(scripted, model="walker") as client:
        np.testing.assert_array_equal(client.answer(QUESTION).actions, [0])


def test_only_steppes_own_server_needs_no_model_name() -> None:
    with client_of(Scripted()) as client, pytest.raises(UserError, match="choose one by --model"):
        client.describe()
    with client_of(Scripted("steppe")) as client:
        described = client.describe()
    assert (described.model, described.applies_once, described.takes_feedback) == ("walker", True, True)


def test_feedback_goes_to_a_service_of_its_own() -> None:
    scripted = Scripted("steppe")
    with client_of(scripted) as client:
        client.feedback(Feedback(0.5, None, "e", True, "e-return", truth=[1]))
    _, request, _ = scripted.heard[-1]
    assert (request.reward, request.sequence_id, request.sequence_end) == (0.5, "e", True)
    assert (request.feedback_id, request.truth, request.id) == ("e-return", "[1]", "")


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        ("UNAVAILABLE", EndpointAway, "because"),
        ("RESOURCE_EXHAUSTED", EndpointAway, "because"),
        ("DEADLINE_EXCEEDED", EndpointAway, "because"),
        ("UNAUTHENTICATED", UserError, "refused access .because.; give its token by --token-file"),
        ("NOT_FOUND", UserError, "no such model or method .because.; check --url"),
        ("UNIMPLEMENTED", UserError, "no such model or method"),
        ("INVALID_ARGUMENT", UserError, "refused what it was sent: because"),
        ("INTERNAL", EndpointFault, "had an internal error .INTERNAL.: because"),
    ],
)
def test_each_refusal_raises_its_own_error(code: str, kind: type[Exception], sentence: str) -> None:
    scripted = Scripted()
    scripted.refusals["ModelInfer"] = (getattr(grpc.StatusCode, code), "because")
    with client_of(scripted, model="walker") as client, pytest.raises(kind, match=sentence):
        client.answer(QUESTION)


def test_feedback_for_an_unknown_episode_raises_episode_lost() -> None:
    scripted = Scripted("steppe")
    scripted.refusals["SendFeedback"] = (grpc.StatusCode.NOT_FOUND, "no such episode")
    with client_of(scripted) as client, pytest.raises(EpisodeLost, match="no such episode"):
        client.feedback(Feedback(0.5, None, "e", True, "e-return"))


def test_a_refused_connection_means_away() -> None:
    with (
        contextlib.closing(OpenInferenceGrpcClient(EndpointAccess("127.0.0.1:1", model="x"))) as client,
        pytest.raises(EndpointAway),
    ):
        client.describe()


def test_an_unusable_answer_is_an_endpoint_fault() -> None:
    scripted = Scripted()
    scripted.answers["ModelInfer"].raw_output_contents[0] = b"abc"
    with client_of(scripted, model="walker") as client:
        with pytest.raises(EndpointFault, match="cannot be read"):
            client.answer(QUESTION)
        scripted.answers["ModelInfer"] = messages.ModelInferResponse()
        with pytest.raises(EndpointFault, match='no output "action"'):
            client.answer(QUESTION)
