"""POST /oauth/token returns the endpoint's token to clients that send it as their secret."""

from __future__ import annotations

import base64

import pytest
from served import one_policy, serving

TOKEN = "a-token-of-enough-letters"
FORM = b"grant_type=client_credentials"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oauth")
    with serving(one_policy(folder), folder, token=TOKEN) as served:
        yield served


def basic(secret, name="oauth-key"):
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def test_the_secret_becomes_the_access_token(guarded):
    reply = guarded.post("/oauth/token", FORM, Authorization=basic(TOKEN))
    assert reply.status == 200
    assert reply.json == {"access_token": TOKEN, "token_type": "bearer", "scope": "read write"}
    assert reply.headers["cache-control"] == "no-store"
    shown = {"Authorization": f"Bearer {reply.json['access_token']}"}
    assert guarded.get("/v2", **shown).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": basic("another-token-of-letters")},
        {"Authorization": basic("x", TOKEN)},
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": "Basic !"},
        {"Authorization": "Basic " + base64.b64encode(TOKEN.encode()).decode()},
        {"X-Auth-Token": TOKEN},
    ],
    ids=["nothing", "another secret", "the token as the name", "bearer", "no base64", "no colon", "another header"],
)
def test_a_wrong_secret_gets_no_token(guarded, headers):
    reply = guarded.post("/oauth/token", FORM, **headers)
    assert (reply.status, reply.json["error"]) == (401, "invalid_client")
    assert reply.headers["www-authenticate"] == "Basic"
    assert TOKEN not in reply.body.decode()


def test_a_secret_works_for_no_other_path(guarded):
    assert guarded.get("/v2", Authorization=basic(TOKEN)).status == 401


def test_only_client_credentials_are_granted(guarded):
    shown = {"Authorization": basic(TOKEN)}
    for form, error in (
        (b"grant_type=password", "unsupported_grant_type"),
        (b"a=1&" * 20, "invalid_request"),
        (b"a" * 5000, "invalid_request"),
    ):
        reply = guarded.post("/oauth/token", form, **shown)
        assert (reply.status, reply.json["error"]) == (400, error)
    assert guarded.get("/oauth/token", **shown).status == 405


def test_an_endpoint_without_a_token_issues_one_that_is_not_checked(one):
    reply = one.post("/oauth/token", FORM, Authorization=basic("whatever"))
    assert reply.json["access_token"] == "none-needed"
    assert one.post("/oauth/token", FORM, Host="evil.example").status == 403
