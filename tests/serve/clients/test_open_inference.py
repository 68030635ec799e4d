from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scripted_http import Heard, answering

from steppe.errors import UserError
from steppe.serve.clients import EndpointAccess, EndpointFault
from steppe.serve.clients.open_inference import HEADER_LENGTH, OpenInferenceClient, read_route
from steppe.serve.messages.exchange import Feedback, Question

METADATA = {
    "name": "walker",
    "inputs": [{"name": "obs", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [
        {"name": "values", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "action", "datatype": "INT64", "shape": [-1]},
    ],
}


class Server:
    """A server of the protocol with some models."""

    def __init__(self, name: str = "other", models: tuple[str, ...] = ("walker",), extensions: Any = ()) -> None:
        self.name, self.models, self.extensions = name, models, list(extensions)
        self.metadata: dict[str, Any] = METADATA
        self.reply: dict[str, Any] = {
            "model_name": "walker",
            "model_version": "3",
            "id": "given",
            "outputs": [{"name": "action", "datatype": "INT64", "shape": [1], "data": [1]}],
        }
        self.heard: list[Heard] = []

    def __call__(self, heard: Heard) -> Any:
        self.heard.append(heard)
        match heard.method, heard.path:
            case "GET", "/v2":
                return {"name": self.name, "version": "1", "extensions": self.extensions}
            case "POST", "/v2/repository/index":
                return [{"name": name, "state": "READY"} for name in self.models]
            case "GET", _:
                return self.metadata
            case _, path if path.endswith("/infer"):
                return self.reply
            case _:
                return {"applied": True}


@pytest.fixture
def server() -> Server:
    return Server()


@contextlib.contextmanager
def client_of(server: Server, model: str | None = None) -> Iterator[OpenInferenceClient]:
    with answering(server) as url, contextlib.closing(OpenInferenceClient(EndpointAccess(url, model=model))) as client:
        yield client


def test_describe_reads_the_models_metadata(server: Server) -> None:
    with client_of(server) as client:
        described = client.describe()
    assert (described.model, described.shape) == ("walker", (4,))
    assert not described.applies_once
    assert not described.takes_feedback


def test_steppes_own_server_takes_feedback_and_lists_the_endpoint_first() -> None:
    with client_of(Server("steppe", ("whole", "a", "b"))) as client:
        described = client.describe()
    assert (described.model, described.applies_once, described.takes_feedback) == ("whole", True, True)


@pytest.mark.parametrize(("models", "words"), [(("a", "b"), "has the models a, b"), ((), "does not say which")])
def test_one_of_several_models_must_be_chosen(models: tuple[str, ...], words: str) -> None:
    with (
        client_of(Server(models=models)) as client,
        pytest.raises(UserError, match=f"{words}.*; choose one by --model"),
    ):
        client.describe()


def test_a_question_is_sent_in_the_protocols_format(server: Server) -> None:
    question = Question(
        np.array([[1, 2, 3, 4]], np.float32), id="q", sequence_id="e", sequence_start=True, deterministic=False
    )
    with client_of(server, "a model") as client:
        answer = client.answer(question)
    request = server.heard[-1]
    assert request.path == "/v2/models/a%20model/infer"
    assert request.data == {
        "id": "q",
        "parameters": {"sequence_id": "e", "sequence_start": True, "sequence_end": False, "deterministic": False},
        "inputs": [{"name": "obs", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}],
        "outputs": [{"name": "action"}],
    }
    assert (answer.id, answer.policy, answer.version, answer.route) == ("given", "walker", "3", ())
    assert np.isnan(answer.propensity)
    np.testing.assert_array_equal(answer.actions, [1])


def test_a_question_without_an_episode_has_no_parameters(server: Server) -> None:
    with client_of(server) as client:
        client.answer(Question(np.zeros((1, 4), np.float32)))
    assert "parameters" not in server.heard[-1].data


def test_route_and_policy_are_read_from_the_parameters(server: Server) -> None:
    server.reply["parameters"] = {"route": "router=1/inner=0", "policy": "good", "propensity": 0.95}
    with client_of(server) as client:
        answer = client.answer(Question(np.zeros((1, 4), np.float32)))
    assert (answer.route, answer.policy, answer.propensity) == ((("router", 1), ("inner", 0)), "good", 0.95)


def test_large_observations_are_sent_as_bytes_if_the_server_takes_them(server: Server) -> None:
    server.extensions = ["binary_tensor_data"]
    server.metadata = METADATA | {"inputs": [{"name": "obs", "datatype": "UINT8", "shape": [-1, 16, 16]}]}
    pictures = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    with client_of(server) as client:
        client.answer(Question(pictures))
    request = server.heard[-1]
    length = int(request.headers[HEADER_LENGTH.lower()])
    (tensor,) = json.loads(request.body[:length])["inputs"]
    assert tensor["parameters"] == {"binary_data_size": 256}
    assert "data" not in tensor
    assert request.body[length:] == pictures.tobytes()


def test_large_observations_are_sent_as_numbers_to_other_servers(server: Server) -> None:
    server.metadata = METADATA | {"inputs": [{"name": "obs", "datatype": "UINT8", "shape": [-1, 16, 16]}]}
    with client_of(server) as client:
        client.answer(Question(np.zeros((1, 16, 16), np.uint8)))
    assert server.heard[-1].data["inputs"][0]["data"] == [0] * 256


def test_feedback_has_only_the_fields_that_are_set(server: Server) -> None:
    with client_of(server) as client:
        client.feedback(Feedback(0.5, None, "e", True, "e-return"))
    assert server.heard[-1].path == "/v2/models/walker/feedback"
    assert server.heard[-1].data == {
        "reward": 0.5,
        "sequence_id": "e",
        "sequence_end": True,
        "feedback_id": "e-return",
    }


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        [],
        [{"name": "values", "datatype": "FP32", "shape": [1], "data": [1]}],
        [{"name": "action", "datatype": "FP32", "shape": [2], "data": [1]}],
        [{"name": "action", "datatype": "BYTES", "shape": [1], "data": ["x"]}],
        [{"name": "action", "datatype": "INT64", "shape": [2], "data": [1, 0]}],
    ],
)
def test_an_unusable_answer_is_an_endpoint_fault(server: Server, outputs: Any) -> None:
    server.reply["outputs"] = outputs
    with client_of(server) as client, pytest.raises(EndpointFault):
        client.answer(Question(np.zeros((1, 4), np.float32)))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"inputs": []}, UserError),
        ({"outputs": []}, UserError),
        ({"inputs": [{"name": "obs", "datatype": "BYTES", "shape": [-1, 4]}]}, UserError),
        ({"inputs": [{"name": "obs"}]}, EndpointFault),
        ({"inputs": [{"name": "obs", "datatype": "FP32", "shape": "?"}]}, EndpointFault),
    ],
)
def test_metadata_that_fits_no_policy_is_refused(server: Server, change: dict[str, Any], kind: type) -> None:
    server.metadata = METADATA | change
    with client_of(server) as client, pytest.raises(kind):
        client.describe()


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("", ()),
        (None, ()),
        ("nonsense", ()),
        ("a=0", (("a", 0),)),
        ("a=b=2/c=1", (("a=b", 2), ("c", 1))),
    ],
)
def test_routes_are_parsed(text: Any, route: tuple[tuple[str, int], ...]) -> None:
    assert read_route(text) == route
