"""Collects batches of timesteps for the learner, and plays greedy episodes for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from steppe.envs._base import EpisodesCut
from steppe.policies.preprocessing import RewardPreprocessing
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat, WorkerBatch
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker.actors import Actor, State
from steppe.runners.engines.episode_collector import EpisodeCollector
from steppe.specs.learning.preprocessing import RewardPreprocessingSpec


class BatchCollector(EpisodeCollector):
    """Steps environments with an actor and keeps track of their episodes."""

    def __init__(self, envs: Any, actor: Actor, task: Task, form: BatchFormat, rng: np.random.Generator) -> None:
        super().__init__(envs, rng)
        self.actor, self.task = actor, task
        self.timesteps = 0
        """The number of timesteps so far, evaluations included."""
        self.tick: Callable[[], None] = lambda: None
        """Called after every step."""
        self._fewest, self._most = task.rows_for(envs.num_envs)
        self._room = form.allocate(self._most, envs.num_envs)
        self._rewards = None
        if task.rewards is not None:
            self._rewards = RewardPreprocessing(RewardPreprocessingSpec.model_validate(task.rewards))
        # Random, so that workers do not play their first evaluation at the same time.
        self._owed = float(rng.random())
        self.start()

    def start(self) -> None:
        """Starts new episodes in all environments."""
        self.begin_episodes(self.envs.reset(int(self.rng.integers(2**31))))

    def initial_state(self) -> State:
        """The actor's initial recurrent state."""
        return self.actor.initial(self.envs.num_envs)

    @property
    def evaluates_next(self) -> bool:
        """Whether greedy episodes are due."""
        return self._owed >= 1.0

    def collect(self) -> WorkerBatch:
        """Collects the next batch; its arrays are reused by the one after it."""
        actor, room, count = self.actor, self._room, self.envs.num_envs
        returns: list[float] = []
        lengths: list[int] = []
        noise = actor.draw(self._most, count, self.rng)
        version = actor.version
        t = 0
        while t < self._most:
            observations, state = self._observations, self._state
            actions, outputs, following = actor.act(observations, noise[t], state)
            # Before the step: an environment may hand out the same array again.
            room.observations[t] = observations
            try:
                step = self.envs.step(actor.to_env_actions(actions))
            except EpisodesCut as cut:
                self.cut_episodes(room, t, cut.observations)
                continue
            self._take(t, step, actions, outputs, state, following)
            has_ended = self.finish_step(step, following, returns, lengths)
            t += 1
            self.timesteps += count
            self.tick()
            if has_ended and self._ends_here(t, len(returns)):
                break
        self._owed += self.task.evaluation_share * len(returns)
        return replace(self._first_rows(t), returns=returns, lengths=lengths, version=version)

    def evaluate(self) -> list[tuple[float, int]]:
        """(return, length) of one greedy episode in each environment; new episodes begin everywhere."""
        self._owed -= 1.0
        self.start()
        count = self.envs.num_envs
        results: dict[int, tuple[float, int]] = {}
        while len(results) < count:
            actions, following = self.actor.act_greedily(self._observations, self._state)
            try:
                step = self.envs.step(self.actor.to_env_actions(actions))
            except EpisodesCut:
                self.start()
                continue
            self._returns += step.scores
            self._lengths += 1
            for i in np.flatnonzero(step.finished).tolist():
                # Only the first episode of each environment counts, so that quick failures are not over-represented.
                results.setdefault(i, (float(self._returns[i]), int(self._lengths[i])))
            ended = step.terminated | step.truncated
            self._state = self.restarted(following, ended) if ended.any() else following
            self._observations = step.observations
            self.timesteps += count
            self.tick()
        self.start()
        return list(results.values())

    def _take(
        self, t: int, step: Any, actions: np.ndarray, outputs: np.ndarray | None, state: State, following: State
    ) -> None:
        """Writes one timestep of all environments into row t."""
        room = self._room
        rewards = step.rewards if self._rewards is None else self._rewards(step.rewards)
        self.count(step, rewards, self.task.discount)
        room.actions[t] = actions
        room.rewards[t] = rewards
        room.terminated[t] = step.terminated
        room.truncated[t] = step.truncated
        room.next_observations[t] = step.next_observations
        if room.outputs is not None:
            room.outputs[t] = outputs
        if room.running_returns is not None:
            room.running_returns[t] = self._running_returns
        for name in room.internals:
            room.internals[name][t] = state[name]
            room.next_internals[name][t] = following[name]

    def _ends_here(self, t: int, episodes: int) -> bool:
        """Whether a batch of t rows is complete, now that an episode has ended."""
        if self.task.rows is not None:
            return False
        # With one environment an evaluation can begin after this episode without cutting another one.
        is_due = self._owed + self.task.evaluation_share * episodes >= 1.0 and self.envs.num_envs == 1
        return t >= self._fewest or is_due

    def _first_rows(self, t: int) -> WorkerBatch:
        room = self._room
        return replace(
            room,
            observations=room.observations[:t],
            actions=room.actions[:t],
            rewards=room.rewards[:t],
            terminated=room.terminated[:t],
            truncated=room.truncated[:t],
            next_observations=room.next_observations[:t],
            outputs=None if room.outputs is None else room.outputs[:t],
            running_returns=None if room.running_returns is None else room.running_returns[:t],
            internals={name: array[:t] for name, array in room.internals.items()},
            next_internals={name: array[:t] for name, array in room.next_internals.items()},
            log_std=self.actor.log_std if room.outputs is not None else None,
        )
