from __future__ import annotations

import pytest

from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.loading.validation import validate
from steppe.specs.running.connections import RemoteSettings, Ue4Settings, split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:5555", ("127.0.0.1", 5555)),
        ("games.example.org:1", ("games.example.org", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text, parts):
    assert split_address(text) == parts


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x", "::1", "[]:1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="an address is written"):
        split_address(text)


def test_settings_stand_beside_the_type_or_in_settings():
    flat = validate(EnvironmentSpec, {"type": "remote", "address": "a:1", "timeout": 5, "normalize_rewards": True})
    nested = validate(
        EnvironmentSpec,
        {"id": "remote", "settings": {"address": "a:1", "timeout": 5}, "normalize_rewards": True},
    )
    assert flat == nested
    assert flat.settings == {"address": "a:1", "timeout": 5}
    assert validate(EnvironmentSpec, flat.model_dump(mode="json")) == flat


def test_other_environments_keep_their_unknown_fields_as_mistakes():
    with pytest.raises(SpecError, match='unknown field "address"'):
        validate(EnvironmentSpec, {"id": "CartPole-v1", "address": "a:1"})


def test_one_or_several_servers_are_named():
    assert RemoteSettings(address="a:1").servers == ["a:1"]
    assert RemoteSettings(addresses=["a:1", "b:2"]).servers == ["a:1", "b:2"]
    assert RemoteSettings(host="a", port=1).servers == ["a:1"]
    assert RemoteSettings(host="::1", port=1).servers == ["[::1]:1"]


def test_a_game_is_at_home_unless_it_says_otherwise():
    assert Ue4Settings().games == ["127.0.0.1:6025"]
    assert Ue4Settings(host="games").games == ["games:6025"]
    assert Ue4Settings(port=7).games == ["127.0.0.1:7"]
    assert Ue4Settings(addresses=["a:1", "b:2"]).games == ["a:1", "b:2"]
    assert Ue4Settings(discretize_actions=True).controls == "combinations"
    assert Ue4Settings(discretize_actions=False).controls == "auto"


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            {},
            'wrong settings in e.json; a remote environment needs either "address": "host:port" or a list "addresses"',
        ),
        ({"addresses": []}, "wrong settings in e.json; wrong value [] at addresses; it must have at least 1 item"),
        ({"adress": "a:1"}, 'wrong settings in e.json; unknown field "adress" at adress; did you mean "address"?'),
        (
            {"address": "a:1", "token": "secret"},
            'wrong settings in e.json; unknown field "token" at token; did you mean "token_file"?',
        ),
        (
            {"address": "a:1", "timeout": 0},
            "wrong settings in e.json; wrong value 0 at timeout; it must be more than 0",
        ),
        (
            {"address": "a:1", "vectorization": "processes"},
            'wrong settings in e.json; vectorization "processes" has no meaning for an environment of type "remote"; '
            "leave it out",
        ),
        (
            {"address": "a:1", "backend": "compiled"},
            'wrong settings in e.json; an environment of type "remote" lives in another process and cannot be compiled',
        ),
        (
            {"address": "a:1", "host": "b"},
            "wrong settings in e.json; either an address or host and port are given, not both",
        ),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(EnvironmentSpec, {"type": "remote"} | written, source="e.json")
    assert str(error.value) == sentence
