"""The OpenAPI document of an endpoint, made from what it serves: GET /openapi.json."""

from __future__ import annotations

from typing import Any

from steppe.serve.endpoint import Endpoint
from steppe.serve.http.seldon import REASONS
from steppe.serve.messages.exchange import Metadata
from steppe.serve.messages.tensors import DTYPES, MOST_DIMENSIONS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WORD: Schema = {"anyOf": [{"type": "string", "maxLength": 256}, {"type": "integer"}, {"type": "null"}]}
FLAG: Schema = {"type": ["boolean", "null"]}
NUMBERS: Schema = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"$ref": "#/components/schemas/Numbers"}]},
}
SHAPE: Schema = {
    "type": "array",
    "maxItems": MOST_DIMENSIONS,
    "items": {"type": "integer", "minimum": 1, "maximum": 1 << 40},
}


def document(endpoint: Endpoint, version: str, needs_token: bool) -> dict[str, Any]:
    """Everything the endpoint answers to."""
    metadata = endpoint.metadata()
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": endpoint.name,
            "version": version,
            "description": "A policy endpoint: Open Inference Protocol V2, the Seldon v1 dialect, feedback.",
        },
        "paths": _paths(endpoint, metadata),
        "components": {"schemas": _schemas(metadata)},
    }
    if needs_token:
        whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"token": []}]
    return whole


def _paths(endpoint: Endpoint, metadata: Metadata) -> dict[str, Any]:
    model = _parameter("model", {"type": "string", "enum": list(endpoint.models())})
    named = _parameter("version", {"type": "string", "minLength": 1, "examples": list(metadata.versions[-1:])})
    paths: dict[str, Any] = {
        "/v2": {"get": _get("What this server is", "Server")},
        "/v2/health/live": {"get": _open("Whether it runs", "Live")},
        "/v2/health/ready": {"get": _open("Whether it answers questions", "Ready")},
        "/v2/repository/index": {"post": _optional(_post("The models that can be asked for", "IndexRequest", "Index"))},
        "/v2/repository/models/{model}/load": {
            "parameters": [model],
            "post": _optional(_post("Looks for newer versions, or puts one into service", "LoadRequest", "Loaded")),
        },
        "/v2/repository/models/{model}/unload": {
            "parameters": [model],
            "post": _optional(_post("Answers no more questions until it is loaded", "LoadRequest", "Unloaded")),
        },
        "/v2/models/{model}/feedback": {
            "parameters": [model],
            "post": _post("A reward for a request or an episode", "Feedback", "Receipt"),
        },
        "/standing": {"get": _get("How routes and policies stand", "Standing")},
        "/metrics": {"get": _get("For Prometheus", None, "text/plain")},
        "/openapi.json": {"get": _get("This document", "Document")},
        "/": {"get": _open("The page", None, "text/html")},
    }
    for prefix, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, named]),
    ):
        paths[prefix] = {"parameters": parameters, "get": _get("A model's inputs and outputs", "Metadata")}
        paths[f"{prefix}/ready"] = {
            "parameters": parameters,
            "get": _get("Whether a model answers questions", "ModelReady"),
        }
        paths[f"{prefix}/infer"] = {
            "parameters": parameters,
            "post": _post("What to do", "InferRequest", "InferResponse"),
        }
    for dialect in ("v0.1", "v1.0"):
        paths[f"/api/{dialect}/predictions"] = {
            "post": _post("What to do, in the Seldon dialect", "Prediction", "Predicted", "SeldonError")
        }
        paths[f"/api/{dialect}/feedback"] = {
            "post": _post("A reward, in the Seldon dialect", "SeldonFeedback", "Predicted", "SeldonError")
        }
    return paths


def _schemas(metadata: Metadata) -> dict[str, Schema]:
    observation = metadata.inputs[0]
    outputs = [each.name for each in metadata.outputs]
    tensor = _object(
        {
            "name": {"const": observation.name},
            "shape": SHAPE | {"examples": [[1, *observation.shape[1:]]]},
            "datatype": {"enum": list(DTYPES), "examples": [observation.datatype]},
            "parameters": {"type": ["object", "null"]},
            "data": {"$ref": "#/components/schemas/Numbers"},
        },
        ["name", "shape", "datatype", "data"],
    )
    sequence = {
        "sequence_id": WORD,
        "sequence_start": FLAG,
        "sequence_end": FLAG,
        "deterministic": FLAG,
    }
    wanted = _object({"name": {"enum": outputs}, "parameters": _maybe(_object({"binary_data": FLAG}))}, ["name"])
    meta = _maybe(_object({"puid": WORD, "tags": _maybe(_object(sequence))}))
    carried = _maybe(_object({"meta": meta}))
    tensor_data = _object({"shape": SHAPE, "values": NUMBERS}, ["shape", "values"])
    return {
        "Numbers": NUMBERS,
        "Error": _object({"error": TEXT}, ["error"]),
        "SeldonError": _object({"status": _object({"code": {"type": "integer"}, "info": TEXT})}, ["status"]),
        "Server": _object({"name": TEXT, "version": TEXT, "extensions": _list(TEXT)}, ["name", "version"]),
        "Live": _object({"live": {"type": "boolean"}}, ["live"]),
        "Ready": _object({"ready": {"type": "boolean"}}, ["ready"]),
        "ModelReady": _object({"name": TEXT, "ready": {"type": "boolean"}}, ["name", "ready"]),
        "Metadata": _object({"name": TEXT, "versions": _list(TEXT), "platform": TEXT}, ["name", "platform"]),
        "IndexRequest": _object({"ready": FLAG}),
        "Index": _list(_object({"name": TEXT, "state": TEXT}, ["name"])),
        "LoadRequest": _object({"parameters": _maybe(_object({"version": WORD}))}),
        "Unloaded": _object({}),
        "Loaded": _object({"news": _list(TEXT)}, ["news"]),
        "InferRequest": _object(
            {
                "id": WORD,
                "parameters": _maybe(_object(sequence | {"binary_data_output": FLAG})),
                "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": tensor},
                "outputs": _maybe(_list(wanted)),
            },
            ["inputs"],
        ),
        "InferResponse": _object(
            {"model_name": TEXT, "model_version": TEXT, "id": TEXT, "parameters": _object({}), "outputs": {}},
            ["model_name", "outputs"],
        ),
        "Feedback": _object(
            {
                "reward": {"type": "number"},
                "id": WORD,
                "sequence_id": WORD,
                "sequence_end": FLAG,
                "feedback_id": WORD,
                "truth": {},
            },
            ["reward"],
        ),
        "Receipt": _object({"applied": {"type": "boolean"}, "id": TEXT}, ["applied"]),
        "Prediction": _object(
            {
                "meta": meta,
                "data": {
                    "oneOf": [
                        _object({"tensor": tensor_data}, ["tensor"]),
                        _object({"ndarray": {"$ref": "#/components/schemas/Numbers"}}, ["ndarray"]),
                    ]
                },
            },
            ["data"],
        ),
        "Predicted": _object({"meta": {"type": "object"}}, ["meta"]),
        "SeldonFeedback": _object(
            {"request": carried, "response": carried, "reward": {"type": "number"}, "truth": {}},
        ),
        "Standing": _object({"endpoint": {"type": "object"}, "server": {"type": "object"}}, ["endpoint", "server"]),
        "Document": {"type": "object"},
    }


def _get(summary: str, schema: str | None, kind: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": _responses(schema, kind, "Error")}


def _open(summary: str, schema: str | None, kind: str = "application/json") -> dict[str, Any]:
    """Needs no token; says no with the same fields as yes."""
    responses = {"200": _content(summary, schema, kind)}
    if schema is not None:
        responses["503"] = _content("Not now", schema)
    return {"summary": summary, "security": [], "responses": responses}


def _post(summary: str, request: str, schema: str, error: str = "Error") -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{request}"}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": body},
        "responses": _responses(schema, "application/json", error),
    }


def _optional(operation: dict[str, Any]) -> dict[str, Any]:
    """The same without the duty to send a body."""
    return operation | {"requestBody": operation["requestBody"] | {"required": False}}


def _responses(schema: str | None, kind: str, error: str) -> dict[str, Any]:
    refusals = {str(status): _content(words.lower().replace("_", " "), error) for status, words in REASONS.items()}
    if schema == "ModelReady":
        refusals["503"] = _content("Not now", schema)
    return {"200": _content("The answer", schema, kind)} | refusals


def _content(description: str, schema: str | None, kind: str = "application/json") -> dict[str, Any]:
    inside = {"schema": TEXT if schema is None else {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": description, "content": {kind: inside}}


def _parameter(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}
