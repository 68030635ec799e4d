from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from scripted_http import Heard, Say, answering

from steppe.serve.clients import EndpointAccess, EndpointFault
from steppe.serve.clients.seldon import SeldonClient
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question

OBSERVATION = np.array([[1, 2, 3, 4]], np.float32)


def conversation(reply: Any, feedback: Feedback | None = None, own: bool = False) -> tuple[list[Heard], PolicyAnswer]:
    """(messages received by a server that answers predictions with `reply`, the answer as the client read it)."""
    heard: list[Heard] = []

    def script(request: Heard) -> Any:
        heard.append(request)
        if request.path == "/v2":
            return {"name": "steppe"} if own else Say({}, 404)
        return reply if request.path == "/api/v1.0/predictions" else {}

    with answering(script) as url, contextlib.closing(SeldonClient(EndpointAccess(url))) as client:
        assert client.describe().applies_once == own
        answer = client.answer(Question(OBSERVATION, id="p", sequence_id="e", sequence_start=True))
        if feedback is not None:
            client.feedback(feedback)
    return heard, answer


REPLY = {
    "meta": {
        "puid": "p",
        "routing": {"router": 1},
        "requestPath": {"router": "img:1", "good": "img:2"},
        "tags": {"policy": "good", "version": "7", "propensity": 0.9},
    },
    "data": {"names": ["action"], "tensor": {"shape": [1, 1], "values": [1]}},
}


def test_a_question_is_sent_in_the_dialects_format_and_its_answer_is_read() -> None:
    heard, answer = conversation(REPLY)
    assert heard[1].data == {
        "meta": {"puid": "p", "tags": {"sequence_id": "e", "sequence_start": True, "sequence_end": False}},
        "data": {"tensor": {"shape": [1, 4], "values": [1, 2, 3, 4]}},
    }
    np.testing.assert_array_equal(answer.actions, [1])
    assert (answer.id, answer.route, answer.policy, answer.version, answer.propensity) == (
        *("p", (("router", 1),), "good", "7", 0.9),
    )


def test_other_servers_name_the_policy_in_the_request_path() -> None:
    meta = {"puid": "p", "routing": {"eg": 0}, "requestPath": {"eg": "img", "first": "img"}}
    _, answer = conversation({"meta": meta, "data": {"ndarray": [[0.0]]}})
    assert (answer.route, answer.policy, answer.version) == ((("eg", 0),), "first", "")
    np.testing.assert_array_equal(answer.actions, [0])


def test_actions_of_several_numbers_keep_their_rows() -> None:
    _, answer = conversation({"data": {"ndarray": [[0.5, -0.5]]}})
    np.testing.assert_array_equal(answer.actions, [[0.5, -0.5]])


def test_feedback_to_steppes_own_server_names_the_episode() -> None:
    heard, _ = conversation(REPLY, Feedback(0.9, None, "e", True, "e-return"), own=True)
    assert heard[-1].path == "/api/v1.0/feedback"
    tags = {"sequence_id": "e", "sequence_end": True, "feedback_id": "e-return"}
    assert heard[-1].data == {"reward": 0.9, "response": {"meta": {"tags": tags}}}


def test_feedback_for_one_request_names_it_to_steppes_own_server() -> None:
    heard, _ = conversation(REPLY, Feedback(0.9, "p", "e", False, "e-1"), own=True)
    assert heard[-1].data["response"]["meta"]["puid"] == "p"


def test_feedback_to_other_servers_repeats_the_last_question_and_its_meta() -> None:
    heard, _ = conversation(REPLY, Feedback(0.9, "p", "e", False, "e-1"))
    assert heard[-1].data == {"request": heard[-2].data, "response": {"meta": REPLY["meta"]}, "reward": 0.9}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"strData": "1"},
        {"ndarray": [["left"]]},
        {"ndarray": [[1], [2, 3]]},
        {"ndarray": [[1], [2]]},
        {"tensor": {"shape": [2], "values": [1]}},
    ],
)
def test_an_unusable_answer_is_an_endpoint_fault(data: Any) -> None:
    with pytest.raises(EndpointFault):
        conversation({"data": data})
