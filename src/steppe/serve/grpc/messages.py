"""Messages and methods of the gRPC services, made from messages.pb on import.

There is no generated code, which would bind Steppe to one generation of protobuf. The pool is Steppe's own, so that
another client of the same protocol may live in the same process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from steppe.errors import MissingExtra

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    raise MissingExtra("gRPC", "serve") from error

INFERENCE = "inference.GRPCInferenceService"
FEEDBACK = "steppe.serving.FeedbackService"
SELDON, SELDON_MODEL = "seldon.protos.Seldon", "seldon.protos.Model"
"""Two services with the same methods: for clients of a whole deployment, and of one model."""


class GrpcMethod(NamedTuple):
    """A method's name and the classes of its request and response."""

    name: str
    request: Any
    response: Any


def methods(service: str) -> list[GrpcMethod]:
    """The methods of a service, by its full name such as INFERENCE."""
    return [
        GrpcMethod(each.name, _class(each.input_type.full_name), _class(each.output_type.full_name))
        for each in _POOL.FindServiceByName(service).methods
    ]


def parameter_value(parameter: Any) -> Any:
    """The value of an InferParameter."""
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    stored = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("messages.pb").read_bytes())
    for file in stored.file:
        pool.Add(file)
    return pool


def _class(full_name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))


_POOL = _load()

ModelInferRequest = _class("inference.ModelInferRequest")
ModelInferResponse = _class("inference.ModelInferResponse")
ModelMetadataResponse = _class("inference.ModelMetadataResponse")
ModelReadyResponse = _class("inference.ModelReadyResponse")
RepositoryIndexResponse = _class("inference.RepositoryIndexResponse")
RepositoryModelLoadResponse = _class("inference.RepositoryModelLoadResponse")
RepositoryModelUnloadResponse = _class("inference.RepositoryModelUnloadResponse")
ServerLiveResponse = _class("inference.ServerLiveResponse")
ServerMetadataResponse = _class("inference.ServerMetadataResponse")
ServerReadyResponse = _class("inference.ServerReadyResponse")
InferParameter = _class("inference.InferParameter")
FeedbackRequest = _class("steppe.serving.FeedbackRequest")
FeedbackResponse = _class("steppe.serving.FeedbackResponse")
SeldonMessage = _class("seldon.protos.SeldonMessage")
SeldonFeedback = _class("seldon.protos.Feedback")
