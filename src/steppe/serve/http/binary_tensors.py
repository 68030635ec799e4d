"""The binary tensor extension: a header gives the length of the JSON, and tensors follow it as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from steppe.errors import UserError
from steppe.serve.http.replies import HttpReply, parsed
from steppe.serve.messages.tensors import from_bytes

LENGTH = b"inference-header-content-length"


def split(body: bytes, length: bytes) -> tuple[dict[str, Any], memoryview]:
    """(JSON object, the bytes after it)."""
    size = int(length) if length.isdigit() and len(length) < 12 else -1
    if not 0 <= size <= len(body):
        raise UserError(f"Inference-Header-Content-Length must be a number from 0 to the body's length, {len(body)}")
    return parsed(body[:size]), memoryview(body)[size:]


class BinaryTensors:
    """The bytes after the JSON, read one tensor after the other."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def take(self, tensor: dict[str, Any], size: Any, name: str) -> np.ndarray:
        """The next tensor, which has `size` bytes by its own account."""
        if type(size) is not int or not 0 <= size <= len(self._rest):
            raise UserError(
                f'"binary_data_size" of "{name}" must be a number of bytes, of which {len(self._rest)} are left'
            )
        if "data" in tensor:
            raise UserError(f'"{name}" has both "data" and "binary_data_size"')
        mine, self._rest = self._rest[:size], self._rest[size:]
        return from_bytes(mine, tensor.get("shape"), tensor.get("datatype"), name)

    def end(self) -> None:
        """Refuses bytes that belong to no tensor."""
        if len(self._rest):
            raise UserError(f"the request has {len(self._rest)} bytes more than its tensors take")


def reply(message: dict[str, Any], blobs: list[bytes], label: str) -> HttpReply:
    """A reply of JSON followed by the bytes of the binary outputs."""
    head = orjson.dumps(message)
    body = b"".join([head, *blobs])
    headers = [
        (b"content-type", b"application/octet-stream"),
        (LENGTH, b"%d" % len(head)),
        (b"content-length", b"%d" % len(body)),
    ]
    return HttpReply(200, body, headers, label)
