from __future__ import annotations

from typing import Any

import pytest
from scripted_http import Heard, Say, answering

from steppe.errors import SteppeError, UserError
from steppe.serve.clients import EndpointAccess, EndpointFault
from steppe.serve.clients.operator import Operator, version_before

WALK = {"name": "walk", "version": "2-b", "pinned": False, "versions": ["1-a", "2-b", "3-c"]}


class Endpoint:
    """An endpoint with several versions of its policies."""

    def __init__(self, *policies: dict[str, Any]) -> None:
        self.policies = {policy["name"]: dict(policy) for policy in policies}
        self.heard: list[Heard] = []

    def __call__(self, heard: Heard) -> Any:
        self.heard.append(heard)
        if heard.path == "/standing":
            return {"endpoint": {"name": "all", "policies": list(self.policies.values())}, "server": {}}
        name, given = heard.path.split("/")[4], heard.data.get("parameters")
        if given is None:
            return {"news": ["something is new"]}
        version = given["version"]
        self.policies[name] |= {"version": version or "3-c", "pinned": version is not None}
        return {"news": []}


def test_a_version_is_pinned_and_unpinned() -> None:
    endpoint = Endpoint(WALK)
    with answering(endpoint) as url, Operator(EndpointAccess(url)) as operator:
        policy = operator.policy(None)
        assert operator.pin(policy, "1-a") == WALK | {"version": "1-a", "pinned": True}
        assert operator.pin(policy, None) == WALK | {"version": "3-c", "pinned": False}
    loads = [heard.data for heard in endpoint.heard if heard.path.endswith("/load")]
    assert loads == [{"parameters": {"version": "1-a"}}, {"parameters": {"version": None}}]


def test_an_unknown_version_is_never_sent() -> None:
    endpoint = Endpoint(WALK)
    sentence = 'has no version "9"; there are 1-a, 2-b, 3-c'
    with (
        answering(endpoint) as url,
        Operator(EndpointAccess(url)) as operator,
        pytest.raises(UserError, match=sentence),
    ):
        operator.pin(operator.policy("walk"), "9")
    assert [heard.path for heard in endpoint.heard] == ["/standing"]


def test_among_several_policies_one_must_be_named() -> None:
    with answering(Endpoint(WALK, WALK | {"name": "run"})) as url, Operator(EndpointAccess(url)) as operator:
        assert operator.policy("run")["name"] == "run"
        with pytest.raises(UserError, match="serves walk, run; choose one by --policy"):
            operator.policy(None)
        with pytest.raises(UserError, match='serves no policy "wolk"; did you mean "walk"'):
            operator.policy("wolk")


def test_reload_returns_the_endpoints_news() -> None:
    with answering(Endpoint(WALK)) as url, Operator(EndpointAccess(url)) as operator:
        assert operator.reload() == ["something is new"]


def test_version_before_is_the_previous_one_in_time() -> None:
    assert version_before(WALK) == "1-a"
    assert version_before(WALK | {"version": "3-c"}) == "2-b"
    with pytest.raises(UserError, match='policy "walk" has no version before 1-a'):
        version_before(WALK | {"version": "1-a"})


def test_an_absent_and_a_foreign_server_have_their_own_errors() -> None:
    with Operator(EndpointAccess("http://127.0.0.1:1")) as operator, pytest.raises(SteppeError, match="is it running"):
        operator.standing()
    sentence = "is it one of Steppe's endpoints"
    with (
        answering(lambda heard: Say({})) as url,
        Operator(EndpointAccess(url)) as operator,
        pytest.raises(EndpointFault, match=sentence),
    ):
        operator.standing()
