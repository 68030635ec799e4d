"""Checks of ids, rewards and episodes that clients send."""

from __future__ import annotations

import json
import math
import time
from itertools import chain
from typing import Any

from steppe.errors import UserError
from steppe.serve.ledger._base import Reward
from steppe.serve.messages.exchange import Feedback, NotFound, Question
from steppe.serve.routing.episodes import OpenEpisodes, RoutedEpisode
from steppe.serve.routing.graph import Leaf, Node

MAX_ID_LENGTH = 200
LARGEST_REWARD = 1e9
"""A larger one is a mistake or an attack: a single reward of 1e100 would decide a router's choices for ever."""
MAX_TRUTH_LENGTH = 1 << 16
"""Most characters of JSON in a reward's "truth", which waits in memory until it is written."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects that are only passed on."""


def check_id(value: str | None, what: str) -> None:
    """Refuses names that a database cannot hold, before they reach its queue."""
    if value is not None and not (0 < len(value) <= MAX_ID_LENGTH and value.isprintable()):
        raise UserError(f"{what} must have 1 to {MAX_ID_LENGTH} characters that can be printed")


def check_same(question: Question, episode: RoutedEpisode, node: Node) -> None:
    """Refuses a question that asks another model or version than its episode began with."""
    if episode.path.start != node.name or question.version not in (None, episode.version.name):
        raise UserError(
            f'episode "{episode.sequence}" began with "{episode.path.start}" and is played by '
            f'"{episode.path.leaf.name}" at version {episode.version.name}; ask for the same, or begin another episode'
        )


def leaf_with_versions(node: Node) -> Leaf:
    """The node if it is a policy; NotFound otherwise, since only policies have versions."""
    if not isinstance(node, Leaf):
        raise NotFound(f'"{node.name}" chooses between policies and has no versions; ask for a policy by name')
    return node


def reward_of(feedback: Feedback, episodes: OpenEpisodes) -> Reward:
    """The reward for the ledger; the decision of an open episode is known without a lookup."""
    names = {"id": feedback.id, "sequence_id": feedback.sequence_id, "feedback_id": feedback.feedback_id}
    for what, value in names.items():
        check_id(value, what)
    key = None
    if feedback.id is None:
        if feedback.sequence_id is None:
            raise UserError("feedback needs the id of a request, or the sequence_id of an episode")
        episode = episodes.get(feedback.sequence_id)
        key = None if episode is None else episode.key
    return Reward(
        reward=_finite(feedback.reward),
        made=time.time(),
        key=key,
        request=feedback.id,
        sequence=feedback.sequence_id,
        is_end=feedback.sequence_end,
        feedback_id=feedback.feedback_id,
        truth=None if feedback.truth is None else _truth(feedback.truth),
    )


def check_depth(value: Any, what: str) -> None:
    """Refuses lists and objects that are nested too deep to be written again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if type(each) is dict else each for each in level if type(each) in (dict, list)]
        level = list(chain.from_iterable(inner))
        if not level:
            return
    raise UserError(f"{what} may be nested at most {MAX_DEPTH} deep")


def _truth(value: Any) -> str:
    check_depth(value, '"truth"')
    text = json.dumps(value)
    if len(text) > MAX_TRUTH_LENGTH:
        raise UserError(f'"truth" may have at most {MAX_TRUTH_LENGTH} characters as JSON, not {len(text)}')
    return text


def _finite(reward: float) -> float:
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise UserError(f"a reward must be a number, not {str(reward)[:60]}")
    try:
        number = float(reward)
    except OverflowError:
        number = math.inf
    if not abs(number) <= LARGEST_REWARD:
        raise UserError(f"a reward must be a finite number of at most {LARGEST_REWARD:g}, not {number:g}")
    return number
