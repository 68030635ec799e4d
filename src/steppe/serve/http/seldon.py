"""The Seldon v1 dialect by HTTP: `POST /api/v0.1|v1.0/predictions` and `/feedback`, and `POST /oauth/token`.

Tensors come as `data.tensor` or `data.ndarray`, and are returned in the same form.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable
from typing import Any
from urllib.parse import parse_qs

from steppe.errors import UserError
from steppe.serve.admission import Gate
from steppe.serve.endpoint import Endpoint
from steppe.serve.http.replies import HttpReply, HttpRequest, answered, as_json, parsed
from steppe.serve.messages import seldon_dialect as dialect
from steppe.serve.messages.exchange import PolicyAnswer, Question
from steppe.serve.messages.fields import object_field
from steppe.serve.question_batches import Batcher

REASONS = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "TIMEOUT",
    413: "TOO_LARGE",
    415: "UNSUPPORTED_ENCODING",
    429: "TOO_MANY_REQUESTS",
    503: "UNAVAILABLE",
}
TOKEN_PATH = "/oauth/token"
NO_TOKEN = "none-needed"
"""The token of an endpoint without one, since clients ask for a token first."""
GRANT = "client_credentials"
MAX_FORM_BYTES = 4096
"""Most bytes in the form of POST /oauth/token."""


class SeldonHandlers:
    """The handlers of /api and /oauth."""

    def __init__(self, endpoint: Endpoint, batcher: Batcher, gate: Gate) -> None:
        self._endpoint, self._batcher, self._gate = endpoint, batcher, gate

    def ping(self, request: HttpRequest) -> HttpReply:
        """GET /ping"""
        return HttpReply(200, b"pong", [(b"content-type", b"text/plain"), (b"content-length", b"4")])

    def token(self, request: HttpRequest) -> HttpReply:
        """POST /oauth/token (RFC 6749, section 4.4): returns the client's secret as the token.

        The gate has compared the secret with the endpoint's token before, so this reveals nothing.
        """
        if _grant_type(request) != GRANT:
            wrong = {"error": "unsupported_grant_type", "error_description": f"grant_type must be {GRANT}"}
            reply = as_json(wrong, 400)
        else:
            secret = basic_secret(request.header(b"authorization")) if self._gate.needs_token else None
            token = NO_TOKEN if secret is None else secret.decode()
            reply = as_json({"access_token": token, "token_type": "bearer", "scope": "read write"})
        reply.headers += [(b"cache-control", b"no-store"), (b"pragma", b"no-cache")]
        return reply

    def predictions(self, request: HttpRequest) -> HttpReply | Awaitable[HttpReply]:
        """POST /api/v1.0/predictions"""
        message = parsed(request.body)
        question, tags, is_tensor = self._read(message)
        return answered(self._batcher, question, lambda answer: _reply(answer, tags, is_tensor))

    async def feedback(self, request: HttpRequest) -> HttpReply:
        """POST /api/v1.0/feedback: {request, response, reward, truth}."""
        receipt = await self._endpoint.feedback(dialect.feedback(parsed(request.body)))
        return as_json({"meta": {"puid": receipt.id, "tags": dialect.receipt_tags(receipt)}}, label=receipt.policy)

    def _read(self, message: dict[str, Any]) -> tuple[Question, dict[str, Any], bool]:
        """(question, its tags, whether it came as `tensor`)."""
        data = message.get("data")
        if type(data) is not dict:
            raise UserError('"data" must be an object with "tensor" or "ndarray"; other payloads hold no observation')
        is_tensor = "tensor" in data
        if is_tensor == ("ndarray" in data):
            raise UserError('"data" must have either "tensor" or "ndarray"')
        if is_tensor:
            tensor = object_field(data, "tensor")
            given = dialect.from_tensor(tensor.get("shape"), tensor.get("values"))
        else:
            given = dialect.from_ndarray(data["ndarray"])
        meta = object_field(message, "meta")
        return dialect.question(meta, self._endpoint.check(given)), object_field(meta, "tags"), is_tensor


def failure(status: int, message: str) -> dict[str, Any]:
    """An error in the dialect's format."""
    reason = REASONS.get(status, "INTERNAL_ERROR")
    return {"status": {"code": status, "info": message, "reason": reason, "status": "FAILURE"}}


def token_failure(status: int, message: str) -> dict[str, Any]:
    """An error of POST /oauth/token in the format of RFC 6749, section 5.2."""
    if status == 401:
        words = "show the endpoint's token as the client's secret, by basic authentication; its name may be any"
        return {"error": "invalid_client", "error_description": words}
    return {"error": "invalid_request", "error_description": message}


def basic_secret(authorization: bytes | None) -> bytes | None:
    """The password of HTTP basic authentication, which is the client's secret; the user name may be any."""
    scheme, _, encoded = (authorization or b"").strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        _, colon, secret = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return secret if colon else None


def _grant_type(request: HttpRequest) -> str:
    """The form's grant type; the only supported one if it is missing, since some clients put it into the address."""
    if len(request.body) > MAX_FORM_BYTES:
        raise UserError(f"the form may have at most {MAX_FORM_BYTES} bytes")
    try:
        fields = parse_qs(request.body.decode("latin-1"), max_num_fields=16)
    except ValueError:
        raise UserError("the form may have at most 16 fields") from None
    return fields.get("grant_type", [GRANT])[0]


def _reply(answer: PolicyAnswer, tags: dict[str, Any], is_tensor: bool) -> HttpReply:
    table, names = dialect.named_table(answer.actions)
    data: dict[str, Any] = {"names": names}
    if is_tensor:
        data["tensor"] = {"shape": table.shape, "values": table.ravel().tolist()}
    else:
        data["ndarray"] = table.tolist()
    meta = {
        "puid": answer.id,
        "tags": dialect.answer_tags(answer, tags),
        "routing": dict(answer.route),
        "requestPath": {answer.policy: answer.version},
        "metrics": [],
    }
    return as_json({"data": data, "meta": meta}, label=answer.policy)
