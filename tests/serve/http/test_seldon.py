from __future__ import annotations

import numpy as np
import pytest

from policies import make_policy

POLICY = make_policy()
ROWS = [[0.1, -0.2, 0.3, 0.0], [1.0, 0.0, -1.0, 2.0]]
PREDICT = "/api/v0.1/predictions"


def tensor(rows=ROWS, **meta):
    values = [number for row in rows for number in row]
    data = {"names": ["x", "v", "angle", "spin"], "tensor": {"shape": [len(rows), 4], "values": values}}
    return {"data": data, "meta": meta}


def test_a_tensor_is_answered_with_a_tensor(one):
    data = one.post(PREDICT, tensor()).json["data"]
    assert data["tensor"]["shape"] == [2, 1]
    assert data["tensor"]["values"] == POLICY.act(np.array(ROWS, np.float32)).tolist()
    assert data["names"] == ["action"]


def test_an_ndarray_is_answered_with_an_ndarray(one):
    expected = POLICY.act(np.array(ROWS, np.float32))[:, None].tolist()
    assert one.post("/api/v1.0/predictions", {"data": {"ndarray": ROWS}}).json["data"]["ndarray"] == expected


def test_meta_has_puid_routing_and_tags(two):
    meta = two.post(PREDICT, tensor(puid="p1", tags={"mine": 1})).json["meta"]
    assert meta["puid"] == "p1"
    assert meta["tags"]["mine"] == 1
    assert meta["tags"]["policy"] == ("a", "b")[meta["routing"]["pole"]]
    assert 0 < meta["tags"]["propensity"] <= 1


def test_an_episode_named_in_the_tags_keeps_its_route(two):
    tags = {"sequence_id": "s1"}
    assert len({two.post(PREDICT, tensor(tags=tags)).json["meta"]["routing"]["pole"] for _ in range(30)}) == 1
    assert len({two.post(PREDICT, tensor()).json["meta"]["routing"]["pole"] for _ in range(60)}) == 2


def test_feedback_rewards_the_answer_that_it_carries(two):
    request = tensor()
    response = two.post(PREDICT, request).json
    message = {"request": request, "response": response, "reward": 0.9}
    reply = two.post("/api/v0.1/feedback", message)
    assert reply.status == 200
    assert reply.json["meta"]["tags"]["applied"] is True
    assert reply.json["meta"]["tags"]["policy"] == response["meta"]["tags"]["policy"]
    assert two.post("/api/v1.0/feedback", message).json["meta"]["tags"]["applied"] is False


def test_a_missing_reward_is_zero(two):
    response = two.post(PREDICT, tensor()).json
    assert two.post("/api/v1.0/feedback", {"response": response}).status == 200


def test_the_paths_of_seldons_gateways_work(one):
    for prefix in ("/seldon/cartpole", "/seldon/default/cartpole"):
        assert one.post(f"{prefix}{PREDICT}", tensor()).status == 200
    assert one.post("/seldon/a/b/c/d/api/v1.0/predictions", tensor()).status == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PREDICT, b"{", 400),
        (PREDICT, {}, 400),
        (PREDICT, {"strData": "x"}, 400),
        (PREDICT, {"data": {}}, 400),
        (PREDICT, {"data": {"tensor": {}, "ndarray": []}}, 400),
        (PREDICT, {"data": {"ndarray": 5}}, 400),
        (PREDICT, {"data": {"ndarray": [[1, 2], [3]]}}, 400),
        (PREDICT, {"data": {"ndarray": [["a", "b", "c", "d"]]}}, 400),
        (PREDICT, {"data": {"ndarray": [[1, 2, 3]]}}, 400),
        (PREDICT, {"data": {"ndarray": []}}, 400),
        (PREDICT, {"data": {"tensor": {"shape": [2, 4], "values": [1, 2, 3, 4]}}}, 400),
        (PREDICT, {"data": {"tensor": {"shape": [2], "values": [[1, 2], [3, 4]]}}}, 400),
        (PREDICT, tensor() | {"meta": 5}, 400),
        (PREDICT, tensor(tags=[1]), 400),
        (PREDICT, tensor(puid={}), 400),
        ("/api/v1.0/feedback", {"reward": 1}, 400),
        ("/api/v1.0/feedback", {"reward": "x", "response": {"meta": {"puid": "x"}}}, 400),
        ("/api/v1.0/feedback", {"reward": 1, "response": {"meta": {"puid": "nobody"}}}, 404),
        ("/api/v1.0/nothing", {}, 404),
    ],
)
def test_errors_have_the_dialects_format(two, path, body, status):
    reply = two.post(path, body)
    assert reply.status == status, reply.body
    said = reply.json["status"]
    assert said["code"] == status
    assert said["status"] == "FAILURE"
    assert said["info"]
