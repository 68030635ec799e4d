"""Asks a policy in pieces, so that a question of many rows takes little more memory than one of a few."""

from __future__ import annotations

import numpy as np

from steppe.policies.forward import State
from steppe.policies.policy import Policy

PIECE = 128
"""How many rows are computed at once: a convolution takes up to fifteen times the memory of its pictures."""


def act(
    policy: Policy, observations: np.ndarray, state: State, greedy: bool, rng: np.random.Generator, wants_outputs: bool
) -> tuple[np.ndarray, np.ndarray | None, State]:
    """(actions [B, ...], the head's outputs [B, outputs] if they are wanted, the state after) of observations [B, ...].

    `state` has a row for each observation, and is empty if the policy remembers nothing.
    """
    if len(observations) <= PIECE:
        return _act(policy, observations, state, greedy, rng, wants_outputs)
    pieces = []
    for start in range(0, len(observations), PIECE):
        rows = slice(start, start + PIECE)
        before = {name: each[rows] for name, each in state.items()}
        pieces.append(_act(policy, observations[rows], before, greedy, rng, wants_outputs))
    actions, outputs, states = zip(*pieces, strict=True)
    return (
        np.concatenate(actions),
        np.concatenate(outputs) if wants_outputs else None,
        {name: np.concatenate([each[name] for each in states]) for name in states[0]},
    )


def _act(
    policy: Policy, observations: np.ndarray, state: State, greedy: bool, rng: np.random.Generator, wants_outputs: bool
) -> tuple[np.ndarray, np.ndarray | None, State]:
    if wants_outputs:
        return policy.advance_with_outputs(observations, state, greedy, rng)
    actions, after = policy.advance(observations, state, greedy, rng)
    return actions, None, after
