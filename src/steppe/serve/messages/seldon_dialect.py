"""Messages of the Seldon v1 dialect, common to HTTP and gRPC.

A request's `meta.puid` is the question's id. Any client of the dialect can describe an episode in `meta.tags`:
`sequence_id`, `sequence_start`, `sequence_end`, `deterministic`. The answer adds the tags `policy`, `version` and
`propensity`, and has the branch of every router in `meta.routing`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question, Receipt
from steppe.serve.messages.fields import (
    feedback_of,
    object_field,
    question_of,
    reward_field,
    text_field,
)
from steppe.serve.messages.tensors import as_array, flattened, shape_of
from steppe.serve.messages.validation import check_depth

OBSERVATIONS = "the observations"
"""The name of a question's numbers in errors."""


def question(meta: dict[str, Any], observations: np.ndarray) -> Question:
    """The question of a message, from its `meta` and its checked observations."""
    tags = object_field(meta, "tags")
    # Tags are sent back, and orjson writes no more than 254 levels.
    check_depth(tags, '"tags"')
    return question_of(tags, observations, text_field(meta, "puid"))


def feedback(message: dict[str, Any]) -> Feedback:
    """The feedback in a message, which carries the answer that it rewards; clients leave out a reward of zero."""
    request, response = object_field(message, "request"), object_field(message, "response")
    asked, answered = object_field(request, "meta"), object_field(response, "meta")
    tags = object_field(asked, "tags") | object_field(answered, "tags")
    id = text_field(answered, "puid") or text_field(asked, "puid")
    return feedback_of(tags, reward_field(message, 0.0), id, message.get("truth"))


def answer_tags(answer: PolicyAnswer, tags: dict[str, Any]) -> dict[str, Any]:
    """The tags of an answer: the question's own, and who answered."""
    return tags | {"policy": answer.policy, "version": answer.version, "propensity": answer.propensity}


def receipt_tags(receipt: Receipt) -> dict[str, Any]:
    """The tags of a reward's receipt."""
    return {"applied": receipt.applied, "policy": receipt.policy}


def named_table(actions: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """(actions [B, columns], column names): the dialect's tensors have rows, so a single choice becomes a column."""
    table = actions.reshape(len(actions), -1) if actions.ndim != 2 else actions
    return table, ["action"] if table.shape[1] == 1 else [f"action:{i}" for i in range(table.shape[1])]


def from_tensor(shape: Any, values: Any) -> np.ndarray:
    """Reads `data.tensor`."""
    sizes = shape_of(shape, "tensor")
    if type(values) is not list:
        raise UserError('"tensor" must have "values", a list of numbers')
    numbers, _ = flattened(values, OBSERVATIONS)
    if len(numbers) != math.prod(sizes):
        raise UserError(f'"tensor" has {len(numbers)} values, but its shape {list(sizes)} has {math.prod(sizes)}')
    return as_array(numbers, OBSERVATIONS).reshape(sizes)


def from_ndarray(values: Any) -> np.ndarray:
    """Reads `data.ndarray`."""
    if type(values) is not list:
        raise UserError('"ndarray" must be a list of observations, each a list of numbers')
    numbers, sizes = flattened(values, OBSERVATIONS)
    return as_array(numbers, OBSERVATIONS).reshape(sizes)
