"""A client of the Open Inference Protocol V2 by gRPC: observations as raw bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import MissingExtra, UserError
from steppe.net.local_tokens import my_server
from steppe.serve.clients._base import (
    EndpointAccess,
    EndpointAway,
    EndpointFault,
    EpisodeLost,
    ModelDescription,
    checked_rows,
    sequence_parameters,
)
from steppe.serve.clients.open_inference import OWN_SERVER, ModelTensors, answer_of, read_metadata
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question
from steppe.serve.messages.tensors import DTYPES, from_bytes, from_numbers

MAX_MESSAGE_BYTES = 1 << 28


class OpenInferenceGrpcClient:
    """A client of any V2 server that speaks gRPC; only Steppe's own understands feedback."""

    def __init__(self, access: EndpointAccess) -> None:
        try:
            import grpc
        except ImportError as error:
            raise MissingExtra("--protocol v2-grpc", "serve") from error
        from steppe.serve.grpc import messages

        self._access, self._grpc, self._messages = access, grpc, messages
        self._channel: Any = None
        self._calls: dict[str, Any] = {}
        self._model: ModelTensors | None = None
        self._token = access.token

    def describe(self) -> ModelDescription:
        """Asks for the server's and the model's metadata."""
        server = self._call("ServerMetadata")
        is_own = server.name == OWN_SERVER
        if self._access.model is None and not is_own:
            raise UserError(f"{self._access.url} does not say which models it has; choose one by --model")
        # For Steppe's own servers an empty name means the whole endpoint.
        metadata = self._call("ModelMetadata", name=self._access.model or "")
        name = self._access.model or metadata.name
        tensors = {
            part: [
                {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
                for each in getattr(metadata, part)
            ]
            for part in ("inputs", "outputs")
        }
        self._model, shape = read_metadata(tensors, name, as_bytes=True)
        return ModelDescription(name, shape, applies_once=is_own, takes_feedback=is_own)

    def answer(self, question: Question) -> PolicyAnswer:
        """Sends one `ModelInfer` request."""
        model = self._described()
        observations = np.ascontiguousarray(question.observations, DTYPES[model.datatype])
        words = sequence_parameters(question)
        tensor = {"name": model.input, "datatype": model.datatype, "shape": list(observations.shape)}
        reply = self._call(
            "ModelInfer",
            model_name=model.name,
            id=question.id or "",
            parameters={name: self._parameter(value) for name, value in words.items()},
            inputs=[tensor],
            outputs=[{"name": model.action}],
            raw_input_contents=[observations.tobytes()],
        )
        parameters = {name: self._messages.parameter_value(each) for name, each in reply.parameters.items()}
        id = reply.id or question.id or ""
        actions = checked_rows(self._action(reply, model), question)
        return answer_of(actions, id, parameters, reply.model_name or model.name, reply.model_version)

    def feedback(self, feedback: Feedback) -> None:
        """Sends feedback by Steppe's own service beside the protocol's."""
        self._call(
            "SendFeedback",
            reward=feedback.reward,
            id=feedback.id or "",
            sequence_id=feedback.sequence_id or "",
            sequence_end=feedback.sequence_end,
            feedback_id=feedback.feedback_id or "",
            truth="" if feedback.truth is None else json.dumps(feedback.truth),
        )

    def close(self) -> None:
        """Disconnects; the next request connects again."""
        channel, self._channel = self._channel, None
        self._calls = {}
        if channel is not None:
            channel.close()

    def _described(self) -> ModelTensors:
        if self._model is None:
            self.describe()
        assert self._model is not None
        return self._model

    def _action(self, reply: Any, model: ModelTensors) -> np.ndarray:
        names = [each.name for each in reply.outputs]
        if model.action not in names:
            raise EndpointFault(f'the endpoint\'s answer has no output "{model.action}"')
        number = names.index(model.action)
        tensor = reply.outputs[number]
        try:
            if number < len(reply.raw_output_contents):
                return from_bytes(reply.raw_output_contents[number], list(tensor.shape), tensor.datatype, model.action)
            filled = [list(values) for _, values in tensor.contents.ListFields()]
            return from_numbers(filled[0] if filled else [], list(tensor.shape), tensor.datatype, model.action)
        except UserError as error:
            raise EndpointFault(f"the endpoint sent an action that cannot be read: {error}") from None

    def _parameter(self, value: Any) -> Any:
        kind = "bool_param" if isinstance(value, bool) else "string_param"
        return self._messages.InferParameter(**{kind: value})

    def _call(self, method: str, /, **fields: Any) -> Any:
        """Calls a method by its name."""
        if self._channel is None:
            self._connect()
        call, request = self._calls[method]
        try:
            return call(request(**fields), timeout=self._access.timeout, metadata=self._identity())
        except self._grpc.RpcError as error:
            raise self._refusal(error, method) from None

    def _identity(self) -> list[tuple[str, str]]:
        return [] if self._token is None else [("authorization", f"Bearer {self._token}")]

    def _connect(self) -> None:
        grpc, access = self._grpc, self._access
        host = access.address.host
        if access.token is None:
            # By its numeric address if it is known: somebody else may listen at another address of the same name.
            number, self._token = my_server(host, access.address.port)
            host = host if access.address.is_encrypted else number
        host = f"[{host}]" if ":" in host else host
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # Channels to the same address would share one connection, and runners would wait for each other.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]
        if access.address.is_encrypted:
            identity = grpc.ssl_channel_credentials(_certificates(access))
            self._channel = grpc.secure_channel(f"{host}:{access.address.port}", identity, options)
        else:
            self._channel = grpc.insecure_channel(f"{host}:{access.address.port}", options)
        for service in (self._messages.INFERENCE, self._messages.FEEDBACK):
            for each in self._messages.methods(service):
                call = self._channel.unary_unary(
                    f"/{service}/{each.name}",
                    request_serializer=each.request.SerializeToString,
                    response_deserializer=each.response.FromString,
                )
                self._calls[each.name] = (call, each.request)

    def _refusal(self, error: Any, method: str) -> Exception:
        code, words, url = error.code(), error.details() or "no reason given", self._access.url
        codes = self._grpc.StatusCode
        if code in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED, codes.RESOURCE_EXHAUSTED, codes.CANCELLED):
            # A failed channel waits longer and longer before it tries again; a new one tries at once.
            self.close()
            if "http1.x server" in words:
                return UserError(
                    f"the server at {url} speaks HTTP and not gRPC; give the endpoint's gRPC port (its --grpc-port), "
                    "or --protocol v2"
                )
            return EndpointAway(words, was_sent=code is not codes.RESOURCE_EXHAUSTED)
        if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
            if (
                self._access.token is None
                and my_server(self._access.address.host, self._access.address.port)[1] != self._token
            ):
                # The endpoint restarted with another token, and the channel has reconnected by itself.
                self.close()
                return EndpointAway(words)
            have = "another token" if self._access.token else "its token"
            return UserError(f"{url} refused access ({words}); give {have} by --token-file or STEPPE_SERVE_TOKEN")
        if code is codes.NOT_FOUND and method == "SendFeedback":
            return EpisodeLost(words)
        if code in (codes.NOT_FOUND, codes.UNIMPLEMENTED):
            return UserError(f"{url} has no such model or method ({words}); check --url, --protocol and --model")
        if code in (codes.INVALID_ARGUMENT, codes.FAILED_PRECONDITION, codes.OUT_OF_RANGE):
            return UserError(f"{url} refused what it was sent: {words}")
        return EndpointFault(f"{url} had an internal error ({code.name}): {words}; see its log")


def _certificates(access: EndpointAccess) -> bytes | None:
    if access.tls_ca is None:
        return None
    access.tls()  # raises an error that names the problem with the file
    return Path(access.tls_ca).read_bytes()
