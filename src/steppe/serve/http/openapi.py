"""The OpenAPI document of an endpoint, GET /openapi.json: the template beside this file, filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from steppe.serve.endpoint import Endpoint
from steppe.serve.http.seldon import REASONS
from steppe.serve.messages.tensors import DTYPES, MAX_DIMENSIONS


def document(endpoint: Endpoint, version: str, needs_token: bool) -> dict[str, Any]:
    """The document for what the endpoint serves."""
    metadata = endpoint.metadata()
    observation = metadata.inputs[0]
    template = orjson.loads(Path(__file__).with_name("openapi.json").read_bytes())
    filled = _filled(
        template,
        {
            "@name": endpoint.name,
            "@version": version,
            "@models": list(endpoint.models()),
            "@versions": list(metadata.versions[-1:]),
            "@input": observation.name,
            "@shapes": [[1, *observation.shape[1:]]],
            "@datatypes": list(DTYPES),
            "@datatype": [observation.datatype],
            "@outputs": [each.name for each in metadata.outputs],
            "@most_dimensions": MAX_DIMENSIONS,
        },
    )
    for path, operations in filled["paths"].items():
        for method in operations.keys() & {"get", "post"}:
            _add_refusals(operations[method], "SeldonError" if path.startswith("/api/") else "Error")
    if needs_token:
        filled["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        filled["security"] = [{"token": []}]
    return filled


def _filled(node: Any, values: dict[str, Any]) -> Any:
    """The template with each placeholder, such as "@name", replaced."""
    if isinstance(node, dict):
        return {name: _filled(each, values) for name, each in node.items()}
    if isinstance(node, list):
        return [_filled(each, values) for each in node]
    return values.get(node, node) if isinstance(node, str) else node


def _add_refusals(operation: dict[str, Any], schema: str) -> None:
    """Adds the error responses, but to probes, which need no token and say no with the same fields as yes."""
    if operation.get("security") == []:
        return
    answer = operation["responses"]["200"]
    for status, reason in REASONS.items():
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        response = {"description": reason.lower().replace("_", " "), "content": content}
        operation["responses"][str(status)] = response
    if "ModelReady" in str(answer["content"]):
        operation["responses"]["503"] = answer | {"description": "Not now"}
