from __future__ import annotations

import gzip
import json
import struct
import zlib

import numpy as np
import pytest
from served import one_policy, question, router, serving

from policies import make_policy
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

POLICY = make_policy()
ROW = [0.1, -0.2, 0.3, 0.0]


def action_of(reply):
    assert reply.status == 200, reply.body
    return reply.json["outputs"][0]["data"]


def test_the_answer_is_the_policys_action(one):
    rows = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    together = one.infer(data=rows.ravel().tolist(), shape=(16, 4))
    assert action_of(together) == POLICY.act(rows).tolist()
    assert together.json["outputs"][0] | {"data": 0} == {
        "name": "action",
        "shape": [16],
        "datatype": "INT32",
        "data": 0,
    }
    assert [action_of(one.infer(data=row.tolist()))[0] for row in rows] == POLICY.act(rows).tolist()


def test_nested_lists_and_other_number_types_are_accepted(one):
    expected = POLICY.act(np.array([[1, 0, 2, 3]], np.float32)).tolist()
    assert action_of(one.infer(data=[[1, 0, 2, 3]])) == expected
    for datatype in ("FP64", "INT32", "UINT8", "INT64"):
        assert action_of(one.infer(data=[1, 0, 2, 3], tensor={"datatype": datatype})) == expected


def test_the_answer_names_its_policy(two):
    reply = two.infer(id="mine").json
    assert reply["id"] == "mine"
    assert reply["model_name"] == "pole"
    said = reply["parameters"]
    assert said["policy"] == ("a", "b")[int(said["route"].removeprefix("pole="))]
    assert 0 < said["propensity"] <= 1
    assert reply["model_version"]


def test_a_route_is_written_as_text(two):
    answer = two.infer(id="routed").json
    receipt = two.post("/v2/models/pole/feedback", {"id": "routed", "reward": 1.0}).json
    assert receipt["route"] == answer["parameters"]["route"]
    assert receipt["route"] in ("pole=0", "pole=1")


def test_a_missing_id_is_made_by_the_endpoint(one):
    assert one.infer().json["id"] != one.infer().json["id"]


def test_an_episode_keeps_its_route(two):
    routes = {two.infer(parameters={"sequence_id": "e1"}).json["parameters"]["route"] for _ in range(30)}
    assert len(routes) == 1
    numbered = {two.infer(parameters={"sequence_id": 17}).json["parameters"]["route"] for _ in range(30)}
    assert len(numbered) == 1
    none = {two.infer(parameters={"sequence_id": 0}).json["parameters"]["route"] for _ in range(60)}
    assert len(none) == 2


def test_one_policy_of_a_graph_can_be_asked_by_name_and_version(two):
    assert two.infer("b").json["parameters"]["policy"] == "b"
    version = two.get("/v2/models/b").json["versions"][-1]
    assert two.post(f"/v2/models/b/versions/{version}/infer", question()).json["model_version"] == version
    assert two.get(f"/v2/models/b/versions/{version}").status == 200
    assert two.get(f"/v2/models/b/versions/{version}/ready").json == {"name": "b", "ready": True}
    for path in ("/v2/models/b/versions/99", "/v2/models/c", "/v2/models/c/ready", "/v2/models/b/versions/99/ready"):
        assert two.get(path).status == 404
    assert two.post("/v2/models/b/versions/99/infer", question()).status == 404
    assert two.infer("c").status == 404


def test_health_and_metadata(one):
    assert one.get("/v2").json["name"] == "steppe"
    assert "binary_tensor_data" in one.get("/v2").json["extensions"]
    assert one.get("/v2/health/live").json == {"live": True}
    assert one.get("/v2/health/ready").json == {"ready": True}
    metadata = one.get("/v2/models/pole").json
    assert metadata["inputs"] == [{"name": "observation", "datatype": "FP32", "shape": [-1, 4]}]
    assert [each["name"] for each in metadata["outputs"]] == ["action", "outputs"]
    assert [each["name"] for each in one.post("/v2/repository/index", {}).json] == ["pole"]


def test_the_heads_outputs_are_returned_on_request(one):
    reply = one.infer(outputs=[{"name": "outputs"}, {"name": "action"}]).json
    assert [each["name"] for each in reply["outputs"]] == ["outputs", "action"]
    expected = POLICY.outputs(np.array([ROW], np.float32)).ravel()
    np.testing.assert_allclose(reply["outputs"][0]["data"], expected, rtol=1e-6)


@pytest.mark.parametrize("more", [{}, {"outputs": []}, {"id": "mine"}, {"parameters": {"deterministic": True}}])
def test_all_outputs_are_returned_if_none_is_named(one, more):
    action, outputs = one.infer(**more).json["outputs"]
    expected = POLICY.outputs(np.array([ROW], np.float32))
    assert (action["name"], outputs["name"], outputs["shape"]) == ("action", "outputs", [1, 3])
    np.testing.assert_allclose(outputs["data"], expected.ravel(), rtol=1e-6)
    assert action["data"] == [int(expected.argmax())]
    (alone,) = one.infer(**more | {"outputs": [{"name": "action"}]}).json["outputs"]
    assert alone == action


def test_a_policy_without_a_head_has_one_output(tmp_path):
    with serving(one_policy(tmp_path, layers=None, kind="random"), tmp_path) as served:
        assert [each["name"] for each in served.infer().json["outputs"]] == ["action"]


@pytest.mark.parametrize("name", ["classification", "shared_memory_region"])
def test_unsupported_parameters_of_outputs_are_refused(one, name):
    reply = one.infer(outputs=[{"name": "outputs", "parameters": {name: 2}}])
    assert reply.status == 400
    assert f'"{name}"' in reply.json["error"]
    assert "leave it out" in reply.json["error"]


def test_an_endpoint_can_be_unloaded_and_loaded_again(tmp_path):
    with serving(router(tmp_path), tmp_path) as served:
        asked = served.infer(id="before")
        refused = served.post("/v2/repository/models/a/unload", {})
        assert (refused.status, refused.json["error"]) == (
            400,
            '"a" is a part of "pole" and cannot be unloaded by itself',
        )
        assert served.post("/v2/repository/models/nobody/unload", {}).status == 404
        assert served.post("/v2/repository/models/pole/unload", {}).status == 200
        for name in ("pole", "a"):
            answer = served.infer(name)
            assert (answer.status, answer.json["error"]) == (503, '"pole" is unloaded; load it to ask it')
            assert served.get(f"/v2/models/{name}/ready").status == 503
        assert served.get("/v2/health/ready").status == 503
        assert served.get("/v2/health/live").status == 200
        index = served.post("/v2/repository/index", {}).json
        assert {(each["state"], each["reason"]) for each in index} == {("UNAVAILABLE", "unloaded")}
        assert served.post("/v2/repository/index", {"ready": True}).json == []
        reward = {"id": asked.json["id"], "reward": 1.0}
        assert served.post("/v2/models/pole/feedback", reward).json["applied"]
        assert served.post("/v2/repository/models/pole/load", {}).status == 200
        assert served.infer().status == served.get("/v2/health/ready").status == 200


def test_tensors_can_be_bytes_in_both_directions(one):
    rows = np.random.default_rng(1).normal(size=(3, 4)).astype("<f4")
    tensor = {"name": "observation", "shape": [3, 4], "datatype": "FP32", "parameters": {"binary_data_size": 48}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    reply = one.post("/v2/models/pole/infer", head + rows.tobytes(), Inference_Header_Content_Length=str(len(head)))
    size = int(reply.headers["inference-header-content-length"])
    action, outputs = json.loads(reply.body[:size])["outputs"]
    assert (action["parameters"], outputs["parameters"]) == ({"binary_data_size": 12}, {"binary_data_size": 36})
    assert np.frombuffer(reply.body[size : size + 12], "<i4").tolist() == POLICY.act(rows).tolist()
    np.testing.assert_allclose(
        np.frombuffer(reply.body[size + 12 :], "<f4").reshape(3, 3), POLICY.outputs(rows), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("length", "size", "rest", "words"),
    [
        ("x", 16, bytes(16), "Inference-Header-Content-Length"),
        ("99999", 16, bytes(16), "Inference-Header-Content-Length"),
        ("-1", 16, bytes(16), "Inference-Header-Content-Length"),
        (None, 15, bytes(16), "15 bytes"),
        (None, 17, bytes(16), "binary_data_size"),
        (None, 16, bytes(20), "4 bytes more"),
        (None, "16", bytes(16), "binary_data_size"),
        (None, 16, struct.pack("<4f", 1, 2, float("nan"), 4), "NaN"),
        (None, 16, struct.pack("<4f", 1, 2, float("inf"), 4), "infinity"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(one, length, size, rest, words):
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    reply = one.post("/v2/models/pole/infer", head + rest, Inference_Header_Content_Length=length or str(len(head)))
    assert reply.status == 400
    assert words in reply.json["error"]


def test_compressed_requests_are_accepted(one):
    body = json.dumps(question()).encode()
    for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        assert one.post("/v2/models/pole/infer", packed, Content_Encoding=encoding).status == 200
    assert one.post("/v2/models/pole/infer", body, Content_Encoding="gzip").status == 400
    assert one.post("/v2/models/pole/infer", gzip.compress(body)[:-9], Content_Encoding="gzip").status == 400
    assert one.post("/v2/models/pole/infer", body, Content_Encoding="br").status == 415


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (json.dumps(question(data=[1, 2, float("nan"), 4])).encode(), "NaN"),
        ({}, '"inputs"'),
        ({"inputs": []}, '"inputs"'),
        ({"inputs": [1]}, '"inputs"'),
        ({"inputs": question()["inputs"] * 2}, '"inputs"'),
        (question(tensor={"name": "obs"}), 'there is no input "obs"; the input is "observation"'),
        (question(tensor={"name": None}), "without a name"),
        (question(tensor={"datatype": "FP99"}), "datatype"),
        (question(tensor={"datatype": "BYTES"}), "datatype"),
        (question(tensor={"datatype": 1}), "datatype"),
        (question(shape=[1, 5]), "5"),
        (question(data=[1, 2, 3, 4, 5], shape=[1, 5]), "shape"),
        (question(data=[], shape=[0, 4]), "no observations"),
        (question(shape=[-1, 4]), "negative"),
        (question(shape=["1", 4]), "whole numbers"),
        (question(shape=[1] * 20), "at most"),
        (question(data=["1", "2", "3", "4"]), "numbers"),
        (question(data=[1, None, 3, 4]), "numbers"),
        (question(data=[[1], [1, 2], [3]]), "same length"),
        (question(data=[1e39, 0, 0, 0]), "infinity"),
        (question(data=[1.5, 0, 0, 0], tensor={"datatype": "INT32"}), "INT32"),
        (question(data=[300, 0, 0, 0], tensor={"datatype": "UINT8"}), "UINT8"),
        (question(tensor={"data": "abc"}), "list of numbers"),
        (question(parameters=[]), "parameters"),
        (question(parameters={"sequence_id": {}}), "sequence_id"),
        (question(parameters={"sequence_start": 1}), "sequence_start"),
        (question(parameters={"deterministic": "yes"}), "deterministic"),
        (question(id=["x"]), '"id"'),
        (question(id="x" * 1000), '"id"'),
        (question(id="a\u0000b"), "id"),
        (question(outputs=[{"name": "q"}]), 'there is no output "q"'),
        (question(outputs="action"), '"outputs"'),
        (question(tensor={"parameters": {"binary_data_size": 16}}), "Inference-Header-Content-Length"),
    ],
)
def test_errors_are_one_sentence(one, body, words):
    reply = one.post("/v2/models/pole/infer", body)
    assert reply.status == 400, reply.body
    assert words in reply.json["error"]
    assert "\n" not in reply.json["error"]
    assert one.infer().status == 200


def test_feedback_counts_once_and_rewards_may_be_any_number(two):
    id = two.infer(id="rewarded").json["id"]
    first = two.post("/v2/models/pole/feedback", {"id": id, "reward": 0.9}).json
    assert first["applied"] is True
    assert first["episode_return"] == pytest.approx(0.9)
    assert two.post("/v2/models/pole/feedback", {"id": id, "reward": 0.9}).json["applied"] is False


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "nobody", "reward": 1.0}, 404),
        ({"sequence_id": "nobody", "reward": 1.0}, 404),
        ({"reward": 1.0}, 400),
        ({"id": "x"}, 400),
        ({"id": "x", "reward": "1"}, 400),
        ({"id": "x", "reward": True}, 400),
        ({"id": "x", "reward": None}, 400),
        (b'{"id": "x", "reward": NaN}', 400),
        (b'{"id": "x", "reward": 1e999}', 400),
        ({"id": 1.5, "reward": 1}, 400),
        (b"", 400),
    ],
)
def test_invalid_feedback_is_refused(two, body, status):
    reply = two.post("/v2/models/pole/feedback", body)
    assert reply.status == status, reply.body
    assert reply.json["error"]


def test_feedback_for_an_unknown_model_is_not_found(two):
    assert two.post("/v2/models/nobody/feedback", {"id": "x", "reward": 1}).status == 404


def test_a_version_can_be_put_into_service(two):
    version = two.get("/v2/models/a").json["versions"][-1]
    path = "/v2/repository/models/a/load"
    assert two.post(path, {"parameters": {"version": version}}).status == 200
    assert two.get("/standing").json["endpoint"]["policies"][0]["pinned"] is True
    assert two.post(path, {"parameters": {"version": None}}).status == 200
    assert two.get("/standing").json["endpoint"]["policies"][0]["pinned"] is False
    assert two.post(path, {"parameters": {"version": "99"}}).status == 404
    assert two.post(path, {}).json == {"news": []}
    assert two.post("/v2/repository/models/nobody/load", {}).status == 404


@pytest.mark.parametrize(
    ("observation", "action", "kind", "row", "datatype"),
    [
        (Box((2, 3), dtype="uint8"), Discrete(2), "categorical", [[[1, 2, 3], [4, 5, 255]]], "UINT8"),
        (Discrete(5), Discrete(3, start=1), "q_values", [4], "INT32"),
        (MultiDiscrete((3, 4)), MultiDiscrete((2, 5)), "categorical", [[2, 3]], "INT32"),
        (Box((3,)), Box((2,), (-2.0,), (2.0,)), "deterministic", [[0.1, 0.2, 0.3]], "FP32"),
    ],
)
def test_every_kind_of_space_is_served(tmp_path, observation, action, kind, row, datatype):
    policy = make_policy(observation, action, kind=kind)
    with serving(one_policy(tmp_path, observation, action, kind=kind), tmp_path) as served:
        given = np.array(row)
        reply = served.infer(data=row, shape=given.shape, tensor={"datatype": datatype})
        output = reply.json["outputs"][0]
        expected = policy.act(given)
        assert output["shape"] == list(expected.shape)
        np.testing.assert_allclose(np.reshape(output["data"], expected.shape), expected, rtol=1e-6)
        seldon = served.post("/api/v1.0/predictions", {"data": {"ndarray": row}}).json["data"]["ndarray"]
        np.testing.assert_allclose(np.reshape(seldon, expected.shape), expected, rtol=1e-6)
