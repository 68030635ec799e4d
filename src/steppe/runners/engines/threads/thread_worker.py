"""A worker thread's environments, randomness and memory, and its work for one ticket."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import numpy as np

from steppe.agents._base import TrainState, Trajectory
from steppe.agents.core.normalizers import empty
from steppe.runners import keys
from steppe.runners.engines.host.rollout_collector import CollectedRollout, RolloutCollector
from steppe.runners.engines.learning import LARGEST_TIMESTEP
from steppe.runners.engines.threads.exploration import final_epsilon_of, with_final_epsilon
from steppe.runners.engines.threads.model import ModelSnapshot, SharedModel
from steppe.runners.engines.threads.program import Program, WorkerState


class LearnedBatch(NamedTuple):
    """The result of one ticket."""

    timesteps: int
    returns: list[float]
    """The returns of the episodes that ended, in order of time."""
    lengths: list[int]
    updates: int
    """The number of steps of the model."""
    lag: int
    """The total number of other workers' steps between reading the model and each step."""
    metrics: list[np.ndarray]
    """The sums of each phase's metrics over its steps."""
    counts: list[int]
    """The number of steps of each phase."""
    is_healthy: bool
    """Whether every loss and gradient was finite; others were not applied to the model."""


class ThreadWorker:
    """Number `index` of a run; only its own thread calls `work`."""

    def __init__(self, index: int, program: Program, model: SharedModel, seed: int, memory: Any, envs: Any) -> None:
        """`envs` are its host environments, None for compiled ones; `memory` is its initial memory."""
        self.index = index
        self.envs = envs
        self._program, self._model = program, model
        self._words = np.zeros(program.reading.words, np.uint32)
        self._reading: ModelSnapshot = program.reading.views(self._words)
        self._carry = program.begin(jax.random.fold_in(keys.make(seed), index), memory)
        self._timesteps = program.agent.horizon * program.agent.context.num_envs
        self._collector: RolloutCollector | None = None
        final_epsilon = final_epsilon_of(seed, index)
        self._reading.final_epsilon[...] = final_epsilon
        jax.tree.map(np.copyto, self._reading.numbers, model.numbers)
        if envs is not None:
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))
            agent = with_final_epsilon(program.agent, final_epsilon) if program.explores_apart else program.agent
            self._collector = RolloutCollector(agent, envs, model.state(), rng)

    def start(self) -> None:
        """Starts new episodes in host environments."""
        if self._collector is not None:
            self._collector.start(int(self._collector.rng.integers(2**31)))

    def work(self, timestep: int) -> LearnedBatch:
        """Collects one rollout and learns from it; `timestep` is the number of all workers' timesteps before."""
        program, model, reading = self._program, self._model, self._reading
        model.read(reading)
        reading.timestep[...] = min(timestep, LARGEST_TIMESTEP)
        reading.batch[...] = 0
        collected = self._collect(timestep)
        trajectory: Trajectory | None = None if collected is None else collected.trajectory
        self._carry, prepared, report = program.first(self._carry, trajectory, self._words)
        if collected is None:
            timesteps, returns, lengths = self._timesteps, *_ended(report)
        else:
            timesteps, returns, lengths = collected.timesteps, collected.returns, collected.lengths
        self._share_statistics(report, timesteps)
        metrics: list[Any] = [0.0] * len(program.plan.phases)
        counts = [0] * len(program.plan.phases)
        lag = 0
        for number, (phase, batch) in enumerate(program.steps):
            if number:
                model.read(reading)
                reading.batch[...] = batch
                self._carry, report = program.more(self._carry, prepared, self._words, phase)
            if not report["healthy"]:
                return LearnedBatch(timesteps, returns, lengths, sum(counts), lag, metrics, counts, False)
            metrics[phase] = metrics[phase] + report["metrics"]
            if not report["learned"]:
                break
            changes = [report[name] for name in program.changes[phase]]
            lag += model.step(phase, changes, int(report["turn"])) - int(reading.updates)
            counts[phase] += 1
        return LearnedBatch(timesteps, returns, lengths, sum(counts), lag, metrics, counts, True)

    def carry(self) -> WorkerState:
        """The state between two rollouts, for a snapshot."""
        return self._program.unpacked(self._carry)

    def randomness(self) -> np.ndarray | None:
        """The state of the random generator of host rollouts, as bytes."""
        if self._collector is None:
            return None
        return np.frombuffer(json.dumps(self._collector.rng.bit_generator.state).encode(), np.uint8)

    def restore(self, carry: WorkerState, randomness: np.ndarray | None) -> None:
        """Restores a snapshot."""
        self._carry = self._program.packed(carry)
        if self._collector is not None and randomness is not None:
            self._collector.rng.bit_generator.state = json.loads(randomness.tobytes())

    def close(self) -> None:
        """Ends host environments and their processes."""
        if self.envs is not None:
            self.envs.close()

    def _collect(self, timestep: int) -> CollectedRollout | None:
        """A rollout of host environments with the parameters of the snapshot."""
        if self._collector is None:
            return None
        collected = self._collector.collect(self._acting_state(), timestep)
        if collected.is_cut_off and self._program.agent.experience == "transitions":
            self._carry = self._program.cut(self._carry)
        return collected

    def _acting_state(self) -> TrainState:
        program, reading = self._program, self._reading
        # Noise in the parameters is drawn from the worker's own key.
        key: Any = program.key_of(self._carry) if program.agent.perturbs_parameters else None
        nothing = empty(())
        statistics = (reading.observations or nothing, reading.returns or nothing)
        return TrainState(reading.params, reading.target, (), *statistics, key, reading.updates)

    def _share_statistics(self, report: Any, timesteps: int) -> None:
        """Merges statistics weighted by the timesteps, whose number varies if rollouts end with episodes."""
        for name, statistics in (("observations", self._model.observations), ("returns", self._model.returns)):
            if statistics is not None:
                mean, variance = report[name]
                statistics.merge(mean, variance, timesteps)


def _ended(report: Any) -> tuple[list[float], list[int]]:
    """Returns and lengths of the episodes that ended in a rollout."""
    ended = report["ended"].nonzero()[0]
    if not ended.size:
        return [], []
    return report["ended_returns"][ended].tolist(), report["ended_lengths"][ended].tolist()
