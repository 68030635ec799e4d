"""A client of the Seldon v1 dialect: tensors in `data`, who answered in `meta`."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from steppe.errors import SteppeError, UserError
from steppe.serve.clients._base import (
    EndpointAccess,
    EndpointFault,
    ModelDescription,
    checked_rows,
    sequence_parameters,
)
from steppe.serve.clients.connection import ClientConnection
from steppe.serve.clients.open_inference import OWN_SERVER, OpenInferenceClient
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question
from steppe.serve.messages.tensors import from_numbers

PREDICTIONS, FEEDBACK = "/api/v1.0/predictions", "/api/v1.0/feedback"


class SeldonClient:
    """A client of any server of the dialect; only Steppe's own understands episodes, by `meta.tags`."""

    def __init__(self, access: EndpointAccess) -> None:
        self._access = access
        self._connection = ClientConnection(access)
        self._is_own = False
        self._asked: dict[str, Any] = {}
        self._answered: dict[str, Any] = {}
        """The last question and the `meta` of its answer: feedback repeats them, so that a router finds its branch."""

    def describe(self) -> ModelDescription:
        """The server's description; the dialect has none, so Steppe's own servers are asked by the other protocol."""
        try:
            server = self._connection.ask("GET", "/v2").get("name", "")
        except SteppeError:
            server = ""
        self._is_own = server == OWN_SERVER
        model = self._access.model or "seldon"
        described = ModelDescription(model, None, applies_once=self._is_own)
        if self._is_own:
            # Shape and environment only save the user some flags: play works without them.
            other = OpenInferenceClient(replace(self._access, model=None))
            with contextlib.closing(other), contextlib.suppress(SteppeError):
                described = replace(other.describe(), model=model)
        return described

    def answer(self, question: Question) -> PolicyAnswer:
        """Sends one prediction request."""
        observations = question.observations
        meta: dict[str, Any] = {"puid": question.id} if question.id is not None else {}
        if tags := sequence_parameters(question):
            meta["tags"] = tags
        tensor = {"shape": list(observations.shape), "values": observations.ravel().tolist()}
        self._asked = {"meta": meta, "data": {"tensor": tensor}}
        data = self._connection.ask("POST", PREDICTIONS, self._asked)
        self._answered = _object(data.get("meta"))
        return _answered(data.get("data"), self._answered, question)

    def feedback(self, feedback: Feedback) -> None:
        """Sends a reward for the last answer, or for its episode."""
        words = {
            "sequence_id": feedback.sequence_id,
            "sequence_end": feedback.sequence_end or None,
            "feedback_id": feedback.feedback_id,
        }
        tags = {name: value for name, value in words.items() if value is not None}
        message: dict[str, Any] = {"reward": feedback.reward}
        if self._is_own:
            message["response"] = {"meta": {"tags": tags} | ({"puid": feedback.id} if feedback.id else {})}
        else:
            # Other servers know only single requests: the last one of an episode stands for all of it.
            message |= {"request": self._asked, "response": {"meta": self._answered}}
        if feedback.truth is not None:
            message["truth"] = feedback.truth
        self._connection.tell(FEEDBACK, message)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def _answered(data: Any, meta: dict[str, Any], question: Question) -> PolicyAnswer:
    tags, routing, path = (_object(meta.get(name)) for name in ("tags", "routing", "requestPath"))
    propensity = tags.get("propensity")
    return PolicyAnswer(
        id=str(meta.get("puid") or question.id or ""),
        actions=checked_rows(_actions(data, len(question.observations)), question),
        route=tuple((str(name), branch) for name, branch in routing.items() if isinstance(branch, int)),
        # The last node that a request went through is the one that answered.
        policy=str(tags.get("policy") or next(reversed(path), "")),
        version=str(tags.get("version", "")),
        propensity=float(propensity) if isinstance(propensity, int | float) else float("nan"),
    )


def _actions(data: Any, rows: int) -> np.ndarray:
    """Reads the actions [B, ...] in either of the dialect's forms."""
    data = _object(data)
    tensor, lists = _object(data.get("tensor")), data.get("ndarray")
    try:
        if tensor:
            actions = from_numbers(tensor.get("values"), tensor.get("shape"), "FP64", "data.tensor")
        elif isinstance(lists, list):
            actions = np.array(lists, float)
        else:
            raise ValueError('its data has neither "tensor" nor "ndarray"')
    except (UserError, TypeError, ValueError) as error:
        raise EndpointFault(f"the endpoint sent an answer that cannot be read: {error}") from None
    # A row of one number is a single choice, as old models answered.
    return actions.reshape(rows) if actions.size == rows and actions.ndim <= 2 else actions


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
