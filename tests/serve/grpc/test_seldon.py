"""The Seldon gRPC services, called with messages made here and with the unmodified seldon-core client."""

from __future__ import annotations

import contextlib

import foreign
import grpc
import numpy as np
import pytest
from served import one_policy, router, serving

from policies import make_policy
from steppe.serve.grpc import messages

POLICY = make_policy()
ROWS = [[0.1, -0.2, 0.3, 0.0], [1.0, 0.0, -1.0, 2.0]]
EXPECTED = POLICY.act(np.array(ROWS, np.float32)).tolist()
TOKEN = "a-token-of-enough-letters"
CLIENT = """
import json, sys
import numpy as np
from seldon_core.seldon_client import SeldonClient
rows = np.array(json.loads(sys.argv[2]))
said = {"actions": [], "routes": [], "rewarded": []}
for gateway, kind in (("seldon", "tensor"), ("seldon", "ndarray"), ("ambassador", "tensor"), ("ambassador", "ndarray")):
    client = SeldonClient(
        gateway=gateway, gateway_endpoint=sys.argv[1], transport="grpc", deployment_name="pole", namespace="default",
        client_return_type="proto"
    )
    meta = {} if gateway == "seldon" else {"meta": {"sequence_id": "s1"}}
    answer = client.predict(data=rows, payload_type=kind, names=["a", "b", "c", "d"], **meta)
    assert answer.success, answer
    data = answer.response.data
    said["actions"].append(list(data.tensor.values) if kind == "tensor" else [row[0] for row in data.ndarray])
    said["routes"].append(answer.response.meta.routing["pole"])
    for _ in range(2):
        told = client.feedback(answer.request, answer.response, reward=0.5)
        assert told.success, told
        said["rewarded"].append(told.response.meta.tags["applied"].bool_value)
model = SeldonClient(microservice_endpoint=sys.argv[1], transport="grpc", client_return_type="proto")
answer = model.microservice(data=rows, method="predict", payload_type="tensor")
assert answer.success, answer
said["model"] = list(answer.response.data.tensor.values)
print(json.dumps(said))
"""
OLD_CLIENT = """
import json, sys
import grpc, requests
from requests.auth import HTTPBasicAuth
from seldon_core.proto import prediction_pb2, prediction_pb2_grpc
http, rpc, secret, rows = sys.argv[1:4] + [json.loads(sys.argv[4])]
got = requests.post(f"http://{http}/oauth/token", auth=HTTPBasicAuth("oauth-key", secret),
                    data={"grant_type": "client_credentials"})
token = got.json()["access_token"]
request = {"data": {"names": ["a"], "tensor": {"shape": [2, 4], "values": sum(rows, [])}}}
shown = {"Authorization": "Bearer " + token}
by_http = requests.post(f"http://{http}/api/v0.1/predictions", json=request, headers=shown).json()
reward = {"request": request, "response": by_http, "reward": 1}
told = requests.post(f"http://{http}/api/v0.1/feedback", json=reward, headers=shown)
tensor = prediction_pb2.Tensor(shape=[2, 4], values=sum(rows, []))
message = prediction_pb2.SeldonMessage(data=prediction_pb2.DefaultData(names=["a"], tensor=tensor))
with grpc.insecure_channel(rpc) as channel:
    stub = prediction_pb2_grpc.SeldonStub(channel)
    by_grpc = stub.Predict(message, metadata=[("oauth_token", token)])
    feedback = prediction_pb2.Feedback(request=message, response=by_grpc, reward=0.5)
    stub.SendFeedback(feedback, metadata=[("oauth_token", token)])
print(json.dumps({
    "http": by_http["data"]["tensor"]["values"], "told": told.status_code, "grpc": list(by_grpc.data.tensor.values),
}))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seldon")
    with serving(router(folder), folder, grpc_port=0) as served:
        yield served


@pytest.fixture(scope="module")
def call(served):
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        yield lambda method, request, service=messages.SELDON, **more: called(channel, service, method, request, **more)


def called(channel, service, name, request, metadata=None):
    method = next(each for each in messages.methods(service) if each.name == name)
    call = channel.unary_unary(
        f"/{service}/{name}",
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    return call(request, metadata=metadata, timeout=30)


def prediction(rows=ROWS, kind="tensor", puid="", shape=None, **tags):
    message = messages.SeldonMessage()
    if kind == "tensor":
        message.data.tensor.shape.extend(np.shape(rows) if shape is None else shape)
        message.data.tensor.values.extend(np.ravel(rows).tolist())
    else:
        for row in rows:
            for each in row:
                message.data.ndarray.values.add().list_value.values.add().number_value = each
    message.meta.puid = puid
    for name, value in tags.items():
        field = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(message.meta.tags[name], field, value)
    return message


@contextlib.contextmanager
def refused(code, words=""):
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value
    assert words in caught.value.details()


@pytest.mark.parametrize("service", [messages.SELDON, messages.SELDON_MODEL])
def test_an_answer_has_action_route_and_policy(call, service):
    answer = call("Predict", prediction(puid=f"mine-{service}", deterministic=True, colour="blue"), service)
    assert list(answer.data.tensor.values) == EXPECTED
    assert list(answer.data.tensor.shape) == [2, 1]
    assert list(answer.data.names) == ["action"]
    assert answer.meta.puid == f"mine-{service}"
    tags = answer.meta.tags
    assert tags["colour"].string_value == "blue"
    assert tags["policy"].string_value == ["a", "b"][answer.meta.routing["pole"]]
    assert 0 < tags["propensity"].number_value <= 1
    assert dict(answer.meta.requestPath) == {tags["policy"].string_value: tags["version"].string_value}


def test_an_episode_keeps_its_route_in_both_protocols(served, call):
    routes = {call("Predict", prediction(sequence_id=7)).meta.routing["pole"] for _ in range(20)}
    question = {"meta": {"tags": {"sequence_id": 7}}, "data": {"ndarray": ROWS}}
    routes.add(served.post("/api/v1.0/predictions", question).json["meta"]["routing"]["pole"])
    assert len(routes) == 1


def test_a_fractional_reward_counts_once_and_exactly(served, call):
    asked = prediction(puid="rewarded")
    answer = call("Predict", asked)
    feedback = messages.SeldonFeedback(request=asked, response=answer, reward=0.25, truth=prediction())
    told = [call("SendFeedback", feedback).meta.tags["applied"].bool_value for _ in range(2)]
    assert told == [True, False]
    again = served.post("/v2/models/pole/feedback", {"id": "rewarded", "reward": 9}).json
    assert (again["applied"], again["episode_return"]) == (False, 0.25)


def test_errors_are_one_sentence(call):
    text = messages.SeldonMessage(strData="left")
    nan = prediction(mark=float("nan"))
    for request, words in (
        (messages.SeldonMessage(), "other payloads"),
        (text, "other payloads"),
        (messages.SeldonMessage(data={"tftensor": b"123"}), "other payloads"),
        (prediction(shape=[3, 4]), "8 values"),
        (prediction(shape=[-1, 4]), "negative"),
        (prediction(shape=[1] * 17), "at most 16"),
        (prediction([[float("nan")] * 4]), "NaN"),
        (prediction([[1.0, 2.0]]), "shape"),
        (nan, "NaN"),
        (prediction(deterministic="yes"), "deterministic"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, words):
            call("Predict", request)
    with refused(grpc.StatusCode.NOT_FOUND):
        call("SendFeedback", messages.SeldonFeedback(response={"meta": {"puid": "nobody"}}, reward=1.0))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "id of a request"):
        call("SendFeedback", messages.SeldonFeedback(reward=1.0))


def test_the_token_is_found_where_clients_of_the_dialect_put_it(tmp_path):
    with (
        serving(one_policy(tmp_path), tmp_path, grpc_port=0, token=TOKEN) as served,
        grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel,
    ):
        for key, value in (("oauth_token", TOKEN), ("x-auth-token", TOKEN), ("authorization", f"Bearer {TOKEN}")):
            assert called(channel, messages.SELDON, "Predict", prediction(), [(key, value)]).meta.puid
        for metadata in (None, [("oauth_token", "another")], [("seldon", TOKEN)]):
            with refused(grpc.StatusCode.UNAUTHENTICATED):
                called(channel, messages.SELDON, "Predict", prediction(), metadata)


def test_the_seldon_core_client_works(served):
    said = foreign.run("seldon_core", CLIENT, f"127.0.0.1:{served.grpc_port}", ROWS)
    assert said["actions"] == [EXPECTED] * 4
    assert said["model"] == EXPECTED
    assert said["rewarded"] == [True, False] * 4
    assert said["routes"][2] == said["routes"][3]


def test_the_old_cart_pole_client_works(tmp_path):
    with serving(router(tmp_path), tmp_path, grpc_port=0, token=TOKEN) as served:
        places = [f"127.0.0.1:{port}" for port in (served.port, served.grpc_port)]
        said = foreign.run("seldon_core", OLD_CLIENT, *places, TOKEN, ROWS)
    assert said == {"http": EXPECTED, "told": 200, "grpc": EXPECTED}
