"""Settings of a learner and its workers."""

from __future__ import annotations

import pytest

from steppe.errors import SpecError
from steppe.specs.loading.validation import validate
from steppe.specs.running.asynchronous import AsyncSpec


def test_every_field_has_a_default():
    spec = AsyncSpec()
    assert (spec.batch_timesteps, spec.update_to_data, spec.address) == (None, None, None)
    assert spec.queue_size >= 1


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_timesteps": 200},
        {"batch_timesteps": "episode"},
        {"update_to_data": 0.5},
        {"update_to_data": "max"},
        {"patience": 0.0, "queue_size": 64},
        {"address": "0.0.0.0:6379", "token_file": "token"},
        {"tls_cert": "cert.pem", "tls_key": "key.pem"},
    ],
)
def test_what_can_be_wished(fields):
    spec = validate(AsyncSpec, fields)
    assert AsyncSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_timesteps": "episodes"}, "batch_timesteps"),
        ({"batch_timesteps": 0}, "batch_timesteps"),
        ({"update_to_data": 0.0}, "update_to_data"),
        ({"update_to_data": "most"}, "update_to_data"),
        ({"queue_size": 0}, "queue_size"),
        ({"evaluation_share": 1.5}, "evaluation_share"),
        ({"address": "learner"}, "host:port"),
        ({"tls_cert": "cert.pem"}, "needs both tls_cert and tls_key"),
        ({"quue_size": 3}, "queue_size"),
    ],
)
def test_what_cannot_be_is_named(fields, words):
    with pytest.raises(SpecError, match=words):
        validate(AsyncSpec, fields)
