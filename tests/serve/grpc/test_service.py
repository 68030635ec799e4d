from __future__ import annotations

import contextlib
import json
import runpy
from pathlib import Path

import foreign
import grpc
import numpy as np
import pytest
from served import let_no_time_pass, one_policy, router, serving

from policies import make_policy
from steppe.serve.grpc import messages
from steppe.serve.limits import TrafficLimits

POLICY = make_policy()
ROWS = np.array([[0.1, -0.2, 0.3, 0.0], [1.0, 0.0, -1.0, 2.0]], np.float32)
TOKEN = "a-token-of-enough-letters"
TRITON = """
import json, sys
import numpy as np
import tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
rows = np.array(json.loads(sys.argv[2]), np.float32)
said = {"live": client.is_server_live(), "ready": client.is_server_ready(), "model": client.is_model_ready("pole")}
said["server"] = client.get_server_metadata().name
said["inputs"] = [each.name for each in client.get_model_metadata("pole").inputs]
given = triton.InferInput("observation", rows.shape, "FP32")
given.set_data_from_numpy(rows)
wanted = [triton.InferRequestedOutput("action"), triton.InferRequestedOutput("outputs")]
said["policies"] = []
for number in range(20):
    result = client.infer("pole", [given], outputs=wanted, request_id=f"r{number}", sequence_id=7)
    said["policies"].append(result.get_response().parameters["policy"].string_param)
said["actions"] = result.as_numpy("action").tolist()
said["outputs"] = result.as_numpy("outputs").tolist()
said["id"] = result.get_response().id
bare = client.infer("pole", [given])
said["bare"] = [bare.as_numpy("action").tolist(), bare.as_numpy("outputs").tolist()]
try:
    client.infer("pole", [given], outputs=[triton.InferRequestedOutput("outputs", class_count=2)])
except triton.InferenceServerException as error:
    said["classes"] = error.message()
client.unload_model("pole")
said["unloaded"] = [client.is_model_ready("pole"), client.is_server_ready()]
said["index"] = [each.state for each in client.get_model_repository_index().models]
client.load_model("pole")
said["loaded"] = client.is_model_ready("pole")
try:
    client.infer("nobody", [given])
except triton.InferenceServerException as error:
    said["error"] = [error.status(), error.message()]
print(json.dumps(said))
"""


class Client:
    """Calls methods by name."""

    def __init__(self, channel):
        self._channel = channel
        self._methods = {
            method.name: (service, method)
            for service in (messages.INFERENCE, messages.FEEDBACK)
            for method in messages.methods(service)
        }

    def __call__(self, method_name, metadata=None, **fields):
        service, method = self._methods[method_name]
        call = self._channel.unary_unary(
            f"/{service}/{method_name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(method.request(**fields), metadata=metadata, timeout=30)

    def infer(self, rows=ROWS, name="observation", datatype="FP32", shape=None, raw=False, metadata=None, **fields):
        tensor = {"name": name, "datatype": datatype, "shape": list(np.shape(rows)) if shape is None else shape}
        if raw:
            fields["raw_input_contents"] = [np.asarray(rows, "<f4").tobytes()]
        else:
            tensor["contents"] = {"fp32_contents": np.ravel(rows).tolist()}
        return self("ModelInfer", metadata, **({"model_name": "pole", "inputs": [tensor]} | fields))


@contextlib.contextmanager
def client_of(served):
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        yield Client(channel)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpc")
    with serving(router(folder), folder, grpc_port=0) as served, client_of(served) as client:
        yield client


@contextlib.contextmanager
def refused(code, words=""):
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value
    assert words in caught.value.details()


def test_the_answer_is_the_policys_action(client):
    expected = POLICY.act(ROWS).tolist()
    typed = client.infer()
    assert list(typed.outputs[0].contents.int_contents) == expected
    assert (typed.outputs[0].name, typed.outputs[0].datatype, list(typed.outputs[0].shape)) == ("action", "INT32", [2])
    raw = client.infer(raw=True)
    assert np.frombuffer(raw.raw_output_contents[0], "<i4").tolist() == expected
    both = client.infer(outputs=[{"name": "outputs"}, {"name": "action"}])
    assert [each.name for each in both.outputs] == ["outputs", "action"]
    np.testing.assert_allclose(both.outputs[0].contents.fp32_contents, POLICY.outputs(ROWS).ravel(), rtol=1e-6)


def test_health_metadata_and_parameters(client):
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ModelReady", name="a").ready
    assert client("ServerMetadata").name == "steppe"
    metadata = client("ModelMetadata", name="pole")
    assert list(metadata.inputs[0].shape) == [-1, 4]
    answer = client.infer(id="mine")
    assert answer.id == "mine"
    assert answer.parameters["policy"].string_param in ("a", "b")
    assert 0 < answer.parameters["propensity"].double_param <= 1


def test_an_episode_keeps_its_route_and_feedback_counts_once(client):
    words = {"sequence_id": {"string_param": "e1"}}
    assert len({client.infer(parameters=words).parameters["route"].string_param for _ in range(30)}) == 1
    id = client.infer(id="rewarded").id
    assert client("SendFeedback", id=id, reward=0.9).applied
    assert not client("SendFeedback", id=id, reward=0.9).applied
    with refused(grpc.StatusCode.NOT_FOUND):
        client("SendFeedback", id="nobody", reward=1.0)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "truth"):
        client("SendFeedback", id=id, reward=1.0, truth="{")
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        client("SendFeedback", id=id, reward=float("nan"))


def test_errors_are_one_sentence(client):
    for fields, words in (
        ({"name": "obs"}, 'there is no input "obs"'),
        ({"datatype": "BYTES"}, "raw_input_contents"),
        ({"datatype": "BYTES", "raw": True}, "datatype"),
        ({"shape": [3, 4]}, "shape"),
        ({"shape": [-1, 4]}, "negative"),
        ({"rows": ROWS * np.float32("nan")}, "NaN"),
        ({"rows": ROWS * np.float32("nan"), "raw": True}, "NaN"),
        ({"inputs": []}, "one input"),
        ({"raw_input_contents": [b"", b""]}, "one entry"),
        ({"raw_input_contents": [b"1234"]}, "4 bytes"),
        ({"outputs": [{"name": "q"}]}, 'no output "q"'),
        ({"parameters": {"sequence_start": {"string_param": "x"}}}, "sequence_start"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, words):
            client.infer(**fields)
    with refused(grpc.StatusCode.NOT_FOUND, "nobody"):
        client.infer(model_name="nobody")
    with refused(grpc.StatusCode.NOT_FOUND):
        client.infer(model_name="a", model_version="99")
    with refused(grpc.StatusCode.NOT_FOUND):
        client("ModelMetadata", name="nobody")
    assert client.infer().outputs


def test_token_rate_and_size_limits_are_those_of_http(tmp_path, monkeypatch):
    let_no_time_pass(monkeypatch)
    limits = TrafficLimits(rate=5.0, body_bytes=4000)
    with (
        serving(one_policy(tmp_path), tmp_path, limits, grpc_port=0, token=TOKEN) as served,
        client_of(served) as client,
    ):
        assert client("ServerReady").ready
        for shown in (None, [("authorization", "Bearer wrong")]):
            with refused(grpc.StatusCode.UNAUTHENTICATED, "token"):
                client.infer(metadata=shown)
        shown = [("authorization", f"Bearer {TOKEN}")]
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            client.infer(np.zeros((1000, 4)), metadata=shown)
        client.infer(metadata=shown)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "5 requests a second"):
            for _ in range(30):
                client.infer(metadata=shown)


def test_the_triton_client_works(tmp_path):
    with serving(router(tmp_path), tmp_path, grpc_port=0) as served:
        said = foreign.run("tritonclient", TRITON, f"127.0.0.1:{served.grpc_port}", ROWS.tolist())
    assert said["live"] is said["ready"] is said["model"] is True
    assert said["server"] == "steppe"
    assert said["inputs"] == ["observation"]
    assert said["actions"] == POLICY.act(ROWS).tolist()
    np.testing.assert_allclose(said["outputs"], POLICY.outputs(ROWS), rtol=1e-6)
    assert len(set(said["policies"])) == 1
    assert said["id"] == "r19"
    assert said["bare"][0] == POLICY.act(ROWS).tolist()
    np.testing.assert_allclose(said["bare"][1], POLICY.outputs(ROWS), rtol=1e-6)
    assert "class_count" in said["classes"]
    assert (said["unloaded"], said["loaded"]) == ([False, False], True)
    assert set(said["index"]) == {"UNAVAILABLE"}
    assert said["error"][0] == "StatusCode.NOT_FOUND"


def test_the_compiled_messages_match_the_proto_files(tmp_path):
    pytest.importorskip("grpc_tools")
    from google.protobuf import descriptor_pb2

    script = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "compile_protos.py"))

    def read(path):
        return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())

    assert read(script["compile_protos"](tmp_path / "new.pb")) == read(script["DESCRIPTORS"])
    assert json.dumps(sorted(each.name for each in messages.methods(messages.INFERENCE)))
