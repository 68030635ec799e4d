"""An endpoint: answers questions with a graph of policies and takes rewards for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.serve.ledger._base import (
    Arms,
    Decision,
    EpisodeEnd,
    Ledger,
    NamedRequest,
    OpenEpisode,
    Reward,
    RewardOutcome,
)
from steppe.serve.ledger.journal import Journals
from steppe.serve.ledger.writer import LedgerWriter
from steppe.serve.limits import EndpointLimits
from steppe.serve.messages import signature, validation
from steppe.serve.messages.exchange import (
    EndpointStanding,
    Feedback,
    Metadata,
    NotFound,
    PolicyAnswer,
    Question,
    Receipt,
    Unavailable,
)
from steppe.serve.policy_runner import ROWS_AT_ONCE, PolicyRunner, is_greedy
from steppe.serve.routing.episodes import OpenEpisodes, RoutedEpisode
from steppe.serve.routing.graph import Node, PolicyGraph
from steppe.specs.loading.suggestions import did_you_mean

log = logging.getLogger("steppe.serve")

FEEDBACK_SECONDS = 20.0
"""Longest wait until a reward is on disk."""
SHARING_SECONDS = 1.0
"""Longest wait for what other replicas know of a question's or a reward's episode."""
LOOK_SECONDS = 0.05
"""Time between two looks at the ledger during that wait."""
EXPIRY_SECONDS = 5.0
"""How often silent episodes are searched for."""
PRUNE_SECONDS = 60.0
"""How often decisions that need not be kept any longer are searched for."""


class Endpoint:
    """Serves a graph of policies.

    All methods belong to the thread of the event loop in which `start` was called. Mistakes of the client raise
    UserError (or its subclass NotFound); Unavailable means that the same may work later.
    """

    def __init__(
        self,
        name: str,
        graph: PolicyGraph,
        ledger: Ledger,
        limits: EndpointLimits | None = None,
        *,
        seed: int | None = None,
        journals: Journals | None = None,
    ) -> None:
        self.name = name
        self.graph = graph
        self.limits = limits or EndpointLimits()
        self.is_shared = ledger.is_shared
        """Whether other replicas use the same ledger; if so, call `await ask(question)` instead of `answer`."""
        self._ledger, self._journals = ledger, journals
        self._writer: LedgerWriter | None = None
        self._episodes = OpenEpisodes(self.limits.episodes, self.limits.idle_seconds, self.limits.episode_bytes)
        self._draw = random.Random(seed).random
        self._signature = signature.signature_of(graph)
        self._runner = PolicyRunner(self._signature, seed)
        # Keys must differ from those of other replicas and of earlier processes.
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._arms: dict[Any, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_unloaded = False

    async def start(self, address: str = "") -> None:
        """Opens the ledger and starts the background tasks.

        `address` is where the endpoint will listen; a second server that wants the same ledger is told this address.
        """
        arms, episodes = await asyncio.to_thread(self._open_ledger, address)
        self._update_arms(arms)
        for episode in episodes:
            self._restore(episode)
        self._writer = LedgerWriter(self._ledger, self.limits.queue, self._update_arms, self._journals)
        self._tasks = [asyncio.create_task(self._expire())]
        if self.limits.watch_seconds is not None:
            self._tasks.append(asyncio.create_task(self._watch(self.limits.watch_seconds)))
        if self.limits.keep_days is not None:
            self._tasks.append(asyncio.create_task(self._prune(self.limits.keep_days)))

    async def close(self) -> None:
        """Writes what is queued and closes the ledger."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
        self._ledger.release()

    @property
    def is_ready(self) -> bool:
        """Whether it answers questions: it was started, and neither closed nor unloaded."""
        return self._writer is not None and not self._is_unloaded

    def unload(self, model: str) -> None:
        """Refuses questions until `load`; rewards still count. Only the whole endpoint can be unloaded."""
        if self._node(model) is not self.graph.root:
            raise UserError(f'"{model}" is a part of "{self.name}" and cannot be unloaded by itself')
        self._is_unloaded = True

    def load(self, model: str) -> None:
        """Answers questions again after `unload`."""
        if self._node(model) is self.graph.root:
            self._is_unloaded = False

    def models(self) -> tuple[str, ...]:
        """The names that a question can ask for: the endpoint's own first, then the nodes of its graph."""
        return tuple(dict.fromkeys([self.name, *self.graph.nodes]))

    def metadata(self, model: str | None = None, version: str | None = None) -> Metadata:
        """Inputs, outputs and versions of the endpoint, or of one node of its graph."""
        node = self._node(model)
        if version is not None:
            validation.leaf_with_versions(node).versions.get(version)
        return signature.metadata(model or self.name, node, version, self._signature, self.is_ready)

    def check(self, observations: Any, model: str | None = None) -> np.ndarray:
        """Checks observations and returns them as [B, ...] in the policies' type.

        They may be an array or nested lists, [B, ...] or one observation. Raises UserError for a wrong shape or type,
        too many rows, NaN, infinity or a choice that does not exist.
        """
        return self._signature.check(observations, self.limits.rows)

    def answer(self, question: Question) -> PolicyAnswer:
        """Answers one question without touching the disk; a repeated question gets the same answer again."""
        if (before := self._episodes.answered(question)) is not None:
            return before
        episode = self._episode_for(question)
        actions, outputs = self._runner.run(question, episode, episode.path.leaf, episode.version)
        return self._record(question, episode, actions, outputs)

    def answers(self, questions: Sequence[Question]) -> list[PolicyAnswer | Exception]:
        """Answers several questions, with one forward pass for all that go to the same policy."""
        results: list[PolicyAnswer | Exception | None] = [None] * len(questions)
        groups: dict[tuple[int, bool], list[tuple[int, RoutedEpisode]]] = {}
        alone, sequences = [], set()
        for index, question in enumerate(questions):
            if question.sequence_id is not None and question.sequence_id in sequences:
                # The question before it in its episode has not been answered yet.
                alone.append(index)
                continue
            sequences.add(question.sequence_id)
            if (before := self._episodes.answered(question)) is not None:
                results[index] = before
                continue
            try:
                episode = self._episode_for(question)
            except UserError as error:
                results[index] = error
                continue
            if episode.version.is_recurrent or len(question.observations) > ROWS_AT_ONCE:
                alone.append(index)
            else:
                key = (id(episode.version), is_greedy(question, episode.path.leaf))
                groups.setdefault(key, []).append((index, episode))
        for (_, greedy), members in groups.items():
            together = [questions[index] for index, _ in members]
            ran = self._runner.run_together(together, members[0][1].version, greedy)
            for (index, episode), (actions, outputs) in zip(members, ran, strict=True):
                results[index] = self._record(questions[index], episode, actions, outputs)
        for index in alone:
            try:
                results[index] = self.answer(questions[index])
            except UserError as error:
                results[index] = error
        return results  # type: ignore[return-value]

    async def ask(self, question: Question) -> PolicyAnswer:
        """Like `answer`, but also finds episodes that another replica began."""
        sequence = question.sequence_id
        if not self.is_shared or sequence is None or (not question.sequence_start and self._episodes.get(sequence)):
            return self.answer(question)
        writer = self._open_writer()
        # If the ledger is away, this replica goes on alone.
        if not question.sequence_start:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(SHARING_SECONDS):
                    found = await writer.find_episode(sequence)
                # Another question of this episode may have come first.
                if found is not None and self._episodes.get(sequence) is None:
                    self._restore(found)
        answer = self.answer(question)
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(SHARING_SECONDS):
                await writer.flush()
        return answer

    async def feedback(self, feedback: Feedback) -> Receipt:
        """Returns once the reward is on disk; raises NotFound for an unknown id, Unavailable without a ledger."""
        reward = validation.reward_of(feedback, self._episodes)
        try:
            async with asyncio.timeout(FEEDBACK_SECONDS):
                outcome = await self._add_reward(reward)
        except TimeoutError:
            raise Unavailable("the ledger does not answer; send the same again later, it is applied once") from None
        if feedback.sequence_end and outcome.sequence is not None:
            self._episodes.close(outcome.sequence, outcome.key)
        route = tuple(step for step in outcome.steps if step[1])
        return Receipt(outcome.applied, outcome.key, outcome.policy, route, outcome.total)

    def standing(self) -> EndpointStanding:
        """The current state, for the page and the metrics."""
        writer = self._writer
        return EndpointStanding(
            name=self.name,
            routers=tuple(signature.router_standing(choice) for choice in self.graph.choices),
            policies=tuple(signature.policy_standing(leaf, self._arms) for leaf in self.graph.leaves),
            shadows=tuple(
                signature.shadow_standing(shadow, leaf, self._arms)
                for shadow in self.graph.shadows
                for leaf in shadow.shadows
            ),
            open_episodes=len(self._episodes),
            expired_episodes=self._episodes.expired,
            queued=writer.queued if writer is not None else 0,
            dropped=writer.dropped if writer is not None else 0,
            ledger_problem=writer.problem if writer is not None else None,
        )

    async def reload(self) -> list[str]:
        """Looks for newer policies; returns a sentence for each change or problem."""
        sentences = [await asyncio.to_thread(leaf.versions.refresh) for leaf in self.graph.leaves]
        news = [sentence for sentence in sentences if sentence is not None]
        for sentence in news:
            log.warning("%s", sentence)
        return news

    async def pin(self, policy: str, version: str | None) -> None:
        """Puts one version of a policy into service until further notice; None returns to the newest."""
        leaf = validation.leaf_with_versions(self._node(policy))
        await asyncio.to_thread(leaf.versions.pin, version)

    async def flush(self) -> None:
        """Returns once every decision so far is on disk."""
        await self._open_writer().flush()

    def _open_ledger(self, address: str) -> tuple[Arms, list[OpenEpisode]]:
        """Opens and locks the ledger, replays the journals of killed processes, and reads arms and open episodes."""
        ledger = self._ledger
        ledger.open()
        try:
            ledger.hold(address)
            if self._journals is not None and (found := self._journals.replay(ledger)):
                log.warning("%d records of an endpoint that was killed are in the ledger now", found)
            return ledger.arms(), ledger.open_episodes(self.limits.episodes)
        except BaseException:
            ledger.close()
            ledger.release()
            raise

    def _open_writer(self) -> LedgerWriter:
        if self._writer is None:
            raise Unavailable("the endpoint is not running; ask again when it is")
        return self._writer

    def _node(self, model: str | None) -> Node:
        if model is None or model == self.name:
            return self.graph.root
        node = self.graph.nodes.get(model)
        if node is None:
            way_out = did_you_mean(model, self.models()) or f"; there are {', '.join(self.models())}"
            raise NotFound(f'there is no model "{model}" here{way_out}')
        return node

    def _episode_for(self, question: Question) -> RoutedEpisode:
        """The open episode of the question, or a new one that is not open yet."""
        if self._is_unloaded:
            raise Unavailable(f'"{self.name}" is unloaded; load it to ask it')
        sequence = question.sequence_id
        validation.check_id(question.id, "id")
        node = self._node(question.model)
        if sequence is not None:
            validation.check_id(sequence, "sequence_id")
            episode = self._episodes.get(sequence)
            if episode is not None and not question.sequence_start:
                validation.check_same(question, episode, node)
                return episode
        elif question.sequence_start or question.sequence_end:
            raise UserError("sequence_start and sequence_end need a sequence_id; send it too")
        path, propensity = self.graph.choose(node, self._draw)
        version = path.leaf.versions.current
        if question.version is not None:
            version = validation.leaf_with_versions(node).versions.get(question.version)
        return RoutedEpisode(f"{self._prefix}-{next(self._numbers):x}", sequence, path, version, propensity)

    def _record(
        self, question: Question, episode: RoutedEpisode, actions: np.ndarray, outputs: np.ndarray | None
    ) -> PolicyAnswer:
        """Records the answer for the ledger and for the next question of the episode."""
        path, writer, sequence = episode.path, self._open_writer(), episode.sequence
        if episode.requests == 0:
            if sequence is not None and (before := self._episodes.get(sequence)) not in (None, episode):
                self._end(before, "ended")
            chosen = (path.leaf.name, episode.version.name, episode.propensity, path.steps, path.is_routed)
            writer.put(Decision(episode.key, sequence, time.time(), *chosen))
            name = episode.key
        else:
            name = f"{episode.key}.{episode.label}{episode.requests}"
            writer.put(path.steps)
        if question.id is not None:
            name = question.id
            writer.put(NamedRequest(name, episode.key))
        if path.shadows:
            for difference in self._runner.compare(question, episode, actions):
                writer.put(difference)
        episode.requests += 1
        episode.rows = len(actions)
        answer = PolicyAnswer(
            name, actions, path.route, path.leaf.name, episode.version.name, episode.propensity, outputs
        )
        if sequence is not None:
            if question.sequence_end:
                self._end(episode, "ended")
            else:
                self._episodes.remember(episode, question, answer)
                for gone in self._episodes.touch(episode):
                    self._end(gone, "expired")
        return answer

    def _end(self, episode: RoutedEpisode, how: str) -> None:
        assert episode.sequence is not None
        self._episodes.close(episode.sequence, episode.key)
        self._open_writer().put(EpisodeEnd(episode.key, time.time(), how))

    async def _add_reward(self, reward: Reward) -> RewardOutcome:
        """Adds a reward; its decision may still be on the way from another replica to the ledger."""
        patience_ends = time.monotonic() + (SHARING_SECONDS if self.is_shared else 0.0)
        while True:
            try:
                return await self._open_writer().reward(reward)
            except NotFound:
                if time.monotonic() >= patience_ends:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    def _update_arms(self, arms: dict[Any, Any]) -> None:
        self._arms = arms
        self.graph.learn(arms)

    def _restore(self, found: OpenEpisode) -> None:
        """Continues an episode that was begun before the start or by another replica."""
        path = self.graph.find(found.policy, found.steps)
        if path is None:
            return
        try:
            version = path.leaf.versions.get(found.version)
        except NotFound:
            version = path.leaf.versions.current
        label = f"{self._prefix}-{next(self._numbers):x}-"
        episode = RoutedEpisode(found.key, found.sequence, path, version, found.propensity, label, requests=1)
        self._episodes.touch(episode)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(EXPIRY_SECONDS, self.limits.idle_seconds))
            for episode in self._episodes.expire():
                self._end(episode, "expired")

    async def _prune(self, days: float) -> None:
        while True:
            # While the ledger is away nothing can be forgotten; the next attempt will do.
            with contextlib.suppress(Unavailable):
                while await self._open_writer().prune(time.time() - 86_400 * days):
                    pass
            await asyncio.sleep(PRUNE_SECONDS)

    async def _watch(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.reload()
            except Exception:
                # The version in service stays, whatever the folder contains; the next look may find a better one.
                log.exception("looking for newer policies failed")
