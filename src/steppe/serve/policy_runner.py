"""Runs policies on questions: many rows in parts, several questions in one forward pass, recurrent state by episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from steppe.errors import UserError
from steppe.policies.forward import State
from steppe.policies.policy import Policy
from steppe.serve.ledger._base import ShadowDifference
from steppe.serve.messages.exchange import Question
from steppe.serve.messages.signature import PolicySignature
from steppe.serve.routing.episodes import RoutedEpisode
from steppe.serve.routing.graph import Leaf
from steppe.serve.versions import Version

ROWS_AT_ONCE = 128
"""Rows computed at once: a convolution takes up to fifteen times the memory of its pictures."""

Result = tuple[np.ndarray, np.ndarray | None]
"""(actions [B, ...], the head's outputs [B, outputs] if the question asks for them)."""


class PolicyRunner:
    """Runs the policies of one graph; used from one thread."""

    def __init__(self, signature: PolicySignature, seed: int | None) -> None:
        self._signature = signature
        self._rng = np.random.default_rng(seed)

    def run(self, question: Question, episode: RoutedEpisode, leaf: Leaf, version: Version) -> Result:
        """Answers one question; a recurrent policy reads and replaces its state in `episode`."""
        observations, policy, greedy = question.observations, version.policy, is_greedy(question, leaf)
        if not version.is_recurrent:
            return self._forward(policy, observations, {}, greedy, question.outputs)[:2]
        if episode.rows not in (0, len(observations)):
            raise UserError(
                f'episode "{episode.sequence}" has {episode.rows} observations in each question, not '
                f"{len(observations)}; a recurrent policy remembers each row"
            )
        state = episode.states.get(leaf.name)
        if state is None:
            state = policy.initial_state((len(observations),))
        actions, outputs, after = self._forward(policy, observations, state, greedy, question.outputs)
        episode.states[leaf.name] = after
        return actions, outputs

    def run_together(self, questions: Sequence[Question], version: Version, greedy: bool) -> Iterator[Result]:
        """Answers questions that go to one feed-forward policy with a single forward pass, in their order."""
        together = np.concatenate([question.observations for question in questions])
        wants_outputs = any(question.outputs for question in questions)
        actions, outputs, _ = self._forward(version.policy, together, {}, greedy, wants_outputs)
        start = 0
        for question in questions:
            rows = slice(start, start := start + len(question.observations))
            yield actions[rows], outputs[rows] if outputs is not None and question.outputs else None

    def compare(self, question: Question, episode: RoutedEpisode, actions: np.ndarray) -> Iterator[ShadowDifference]:
        """Runs the shadow policies of the episode's path and compares their actions with those of the answer."""
        for step, leaf in episode.path.shadows:
            try:
                others, _ = self.run(question, episode, leaf, leaf.versions.current)
                value = self._signature.difference(actions, others)
            except Exception:
                # A shadow policy must not harm the answer, whatever it does.
                value = None
            yield ShadowDifference(step, value)

    def _forward(
        self, policy: Policy, observations: np.ndarray, state: State, greedy: bool, wants_outputs: bool
    ) -> tuple[np.ndarray, np.ndarray | None, State]:
        """(actions, the head's outputs if wanted, the state afterwards); a policy without memory has the state {}."""
        if len(observations) <= ROWS_AT_ONCE:
            return self._advance(policy, observations, state, greedy, wants_outputs)
        parts = []
        for start in range(0, len(observations), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            before = {name: each[rows] for name, each in state.items()}
            parts.append(self._advance(policy, observations[rows], before, greedy, wants_outputs))
        actions, outputs, states = zip(*parts, strict=True)
        after = {name: np.concatenate([each[name] for each in states]) for name in states[0]}
        return np.concatenate(actions), np.concatenate(outputs) if wants_outputs else None, after

    def _advance(
        self, policy: Policy, observations: np.ndarray, state: State, greedy: bool, wants_outputs: bool
    ) -> tuple[np.ndarray, np.ndarray | None, State]:
        if wants_outputs:
            return policy.advance_with_outputs(observations, state, greedy, self._rng)
        actions, after = policy.advance(observations, state, greedy, self._rng)
        return actions, None, after


def is_greedy(question: Question, leaf: Leaf) -> bool:
    """Whether to take the best action instead of drawing one: as the question says, else as the graph does."""
    return leaf.deterministic if question.deterministic is None else question.deterministic
