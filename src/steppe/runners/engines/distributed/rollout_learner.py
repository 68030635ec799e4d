"""A worker's computation between two pushes: rollouts with given parameters, and gradients from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Agent, TrainState, Trajectory
from steppe.agents.core import normalizers
from steppe.agents.core.normalizers import Statistics
from steppe.runners import keys
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.engines.compiled import compiled_window
from steppe.runners.engines.compiled.compiled_window import CompiledWindow, empty_window
from steppe.runners.engines.compiled.rollout import Envs, Rollout
from steppe.runners.engines.distributed.gradient_tape import (
    recorded,
    remembered,
    reminded,
    rewound,
    steps_per_rollout,
    with_tapes,
)
from steppe.runners.engines.distributed.moments import Moments, NormalizerMoments, merged_moments, moments, of_values
from steppe.runners.engines.host.rollout_collector import RolloutCollector
from steppe.runners.engines.learning import (
    LARGEST_TIMESTEP,
    Learner,
    LearnStep,
    begin,
    episodes_cut,
    is_healthy,
    learn,
)
from steppe.runners.episode_window import WINDOW


class StartingPoint(NamedTuple):
    """The parameters and statistics that a worker starts from."""

    params: np.ndarray
    target: np.ndarray
    """[P], or [0] if the agent has no targets."""
    version: int
    """The number of updates in the parameters."""
    rates: Sequence[np.ndarray]
    """The learning rates [rows] of each optimiser for the next updates."""
    seen: NormalizerMoments | None = None
    """The statistics of the normalisers, if there are any."""
    ahead: int = 0
    """How many of the updates are the worker's own, not yet confirmed by the servers."""


@dataclass
class LearnedRollouts:
    """The results of some rollouts."""

    gradients: np.ndarray
    """Clipped, in their order [G, P]."""
    change: np.ndarray
    """The sum of the worker's own steps [P]."""
    timesteps: int
    episodes: int
    returns: list[float] = field(default_factory=list)
    """The returns of the last episodes that ended, at most WINDOW."""
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the rollouts with updates."""
    is_healthy: bool = True
    seen: NormalizerMoments | None = None
    """New statistics for the normalisers, if there are any."""


class RolloutLearner:
    """The common part of compiled and host environments."""

    def __init__(self, agent: Agent[Any], rollouts: int) -> None:
        self.rollouts = rollouts
        context = agent.context
        self.normalizes = agent.normalizes_observations or context.normalize_rewards
        self.timesteps_per_rollout = agent.horizon * context.num_envs
        self.rows = rollouts * steps_per_rollout(agent)
        self.agent = with_tapes(agent, self.rows)
        self._numbers = agent.numbers

    def _based(self, state: TrainState, base: StartingPoint) -> TrainState:
        """The worker's state with the servers' parameters, statistics and version."""
        params: Any = base.params
        target: Any = base.target
        state = state._replace(
            params=params,
            target=target,
            optimizer=rewound(state, base.rates),
            updates=np.int32(base.version),
        )
        if base.seen is None:
            return state
        observations, returns = (statistics(each) for each in base.seen)
        return state._replace(observations=observations, returns=returns)

    def _own(self, learner: Learner) -> Learner:
        """The part of a learner that only this worker has: randomness, memory, and the state of its own optimisers."""
        nothing: Any = ()
        state = learner.agent
        return learner._replace(agent=state._replace(params=nothing, target=nothing, optimizer=remembered(state)))

    def _with_own(self, learner: Learner, own: Learner) -> Learner:
        """A learner with that part replaced."""
        state = learner.agent
        optimizer = reminded(state, own.agent.optimizer)
        return own._replace(agent=own.agent._replace(params=state.params, target=state.target, optimizer=optimizer))


class _WorkerRun(NamedTuple):
    learner: Learner
    envs: Envs


class _RolloutSums(NamedTuple):
    """Sums over rollouts."""

    metrics: dict[str, Array]
    learned: Array
    """The number of rollouts with updates."""
    episodes: Array
    window: CompiledWindow
    observations: Statistics
    returns: Statistics


class CompiledRolloutLearner(RolloutLearner):
    """Rollouts and learning in one compiled program."""

    def __init__(self, agent: Agent[Any], rollout: Rollout, rollouts: int) -> None:
        super().__init__(agent, rollouts)
        self.rollout = rollout
        self._begin = jax.jit(rollout.begin, static_argnums=(1, 2))
        self._program = jax.jit(self._rollouts, donate_argnums=0)

    def begin(self, seed: int, number: int, left: dict[str, np.ndarray] | None = None) -> None:
        """Starts with fresh episodes and randomness of its own, or from the state `left` in a checkpoint."""
        agent_key, env_key = jax.random.split(worker_key(seed, number))
        envs = self._begin(env_key, self.agent.context.num_envs, 1)
        self._run = _WorkerRun(begin(self.agent, agent_key, pretrains=False), envs)
        if left is not None:
            own = from_arrays(_WorkerRun(self._own(self._run.learner), self._run.envs), left)
            self._run = _WorkerRun(self._with_own(self._run.learner, own.learner), own.envs)
        self._compile()

    def arrays(self) -> dict[str, np.ndarray]:
        """The part of the checkpoint's state that only this worker has."""
        return to_arrays(_WorkerRun(self._own(self._run.learner), self._run.envs))

    def run(self, base: StartingPoint, rollouts: int, timestep: int, stride: int) -> LearnedRollouts:
        """Learns from at most `rollouts` rollouts; `timestep`, of all workers, grows by `stride` with each."""
        learner = self._run.learner._replace(agent=self._based(self._run.learner.agent, base))
        # A copy, since the compiled program may overwrite its arguments.
        start = base.params.copy()
        now, step = jnp.int32(min(timestep, LARGEST_TIMESTEP)), jnp.int32(stride)
        self._run, done = self._program(
            self._run._replace(learner=learner), self._numbers, jnp.int32(rollouts), now, step
        )
        count = int(done["count"])
        finished = int(done["episodes"])
        window = CompiledWindow(*(np.asarray(leaf) for leaf in done["window"]))
        kept = (int(window.position) - int(window.filled) + np.arange(int(window.filled))) % WINDOW
        seen = NormalizerMoments(moments(done["observations"]), moments(done["returns"])) if self.normalizes else None
        return LearnedRollouts(
            gradients=np.asarray(done["gradients"])[:count],
            change=np.asarray(done["params"]) - start,
            timesteps=int(done["rollouts"]) * self.timesteps_per_rollout,
            episodes=finished,
            returns=window.returns[kept].tolist(),
            lengths=window.lengths[kept].tolist(),
            metrics={name: float(value) for name, value in done["metrics"].items()} if count else {},
            is_healthy=bool(done["is_healthy"]),
            seen=seen,
        )

    def close(self) -> None:
        """Does nothing."""

    def _compile(self) -> None:
        """Compiles the program by a call without a rollout, so that the first order does not wait for it."""
        state = self._run.learner.agent
        seen = NormalizerMoments(moments(state.observations), moments(state.returns)) if self.normalizes else None
        rates = [np.zeros(self.rows, np.float32) for _ in remembered(state)]
        self.run(StartingPoint(np.array(state.params), np.array(state.target), 0, rates, seen), 0, 0, 0)

    def _rollouts(
        self, run: _WorkerRun, numbers: dict[str, Any], rollouts: Array, timestep: Array, stride: Array
    ) -> tuple[_WorkerRun, dict[str, Any]]:
        rollout = partial(self._rollout, self.agent.with_numbers(numbers))
        shapes = jax.eval_shape(rollout, run, timestep)[2]
        metrics = {name: jnp.zeros(leaf.shape, jnp.float32) for name, leaf in shapes.items()}
        empty = jax.tree.map(jnp.asarray, empty_window())
        nothing = _nothing_seen(self.agent)
        sums = _RolloutSums(metrics, jnp.int32(0), jnp.int32(0), empty, *nothing)

        def is_going(carry: tuple[_WorkerRun, _RolloutSums, Array, Array]) -> Array:
            return (carry[2] < rollouts) & carry[3]

        def once(carry: tuple[_WorkerRun, _RolloutSums, Array, Array]) -> tuple[_WorkerRun, _RolloutSums, Array, Array]:
            run, sums, done, _ = carry
            run, finished, metrics, trajectory = rollout(run, timestep + done * stride)
            updates = metrics["updates"]
            learned = (updates > 0).astype(jnp.float32)
            added = {name: sums.metrics[name] + learned * value for name, value in metrics.items()}
            observations, returns = self._newly_seen(sums, trajectory)
            sums = _RolloutSums(
                metrics=added,
                learned=sums.learned + (updates > 0),
                episodes=sums.episodes + finished.ended.sum(dtype=jnp.int32),
                window=compiled_window.record(sums.window, *finished),
                observations=observations,
                returns=returns,
            )
            return run, sums, done + 1, is_healthy(run.learner, metrics)

        run, sums, done, healthy = jax.lax.while_loop(is_going, once, (run, sums, jnp.int32(0), jnp.bool_(True)))
        gradients, count = recorded(run.learner.agent)
        learned = jnp.maximum(sums.learned, 1)
        return run, {
            "gradients": gradients,
            "count": count,
            "params": run.learner.agent.params,
            "rollouts": done,
            "episodes": sums.episodes,
            "window": sums.window,
            "metrics": {name: value / learned for name, value in sums.metrics.items() if name != "updates"},
            "is_healthy": healthy,
            "observations": sums.observations,
            "returns": sums.returns,
        }

    def _rollout(
        self, agent: Agent[Any], run: _WorkerRun, timestep: Array
    ) -> tuple[_WorkerRun, Any, dict[str, Array], Trajectory]:
        acting = agent.actor_params(run.learner.agent)
        envs, trajectory, finished = self.rollout.with_agent(agent).collect(run.envs, acting, timestep)
        learner, metrics = learn(agent, run.learner, trajectory)
        return _WorkerRun(learner, envs), finished, metrics, trajectory

    def _newly_seen(self, sums: _RolloutSums, trajectory: Trajectory) -> tuple[Statistics, Statistics]:
        observations, returns = sums.observations, sums.returns
        if self.agent.normalizes_observations:
            observations = normalizers.merge(observations, trajectory.observations, weights=trajectory.weights)
        if self.agent.context.normalize_rewards:
            returns = normalizers.merge(returns, trajectory.running_returns, weights=trajectory.weights)
        return observations, returns


class HostRolloutLearner(RolloutLearner):
    """Rollouts in Python, and one compiled call for learning from each."""

    def __init__(self, agent: Agent[Any], envs: Any, rollouts: int) -> None:
        super().__init__(agent, rollouts)
        self.envs = envs
        self._step = LearnStep(self.agent)
        self._learn = jax.jit(self._step.learn, donate_argnums=0)

    def begin(self, seed: int, number: int, left: dict[str, np.ndarray] | None = None) -> None:
        """Starts with fresh episodes, and with randomness of its own or everything else as `left` in a checkpoint."""
        self._learner = begin(self.agent, worker_key(seed, number), pretrains=False)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        if left is not None:
            left = dict(left)
            rng.bit_generator.state = json.loads(left.pop("host/rng").tobytes())
            own = self._with_own(self._learner, from_arrays(self._own(self._learner), left))
            self._learner = episodes_cut(self.agent, own)
        self._collector = RolloutCollector(self.agent, self.envs, self._learner.agent, rng)
        self._collector.start(int(rng.integers(2**31)))

    def run(self, base: StartingPoint, rollouts: int, timestep: int, stride: int) -> LearnedRollouts:
        """Learns from at most `rollouts` rollouts; `timestep`, of all workers, grows by `stride` with each."""
        learner = self._learner._replace(agent=self._based(self._learner.agent, base))
        start = base.params.copy()
        done = LearnedRollouts(np.zeros((0, 0), np.float32), start, 0, 0)
        rows: list[dict[str, float]] = []
        for index in range(rollouts):
            collected = self._collector.collect(learner.agent, timestep + index * stride)
            if collected.is_cut_off:
                learner = episodes_cut(self.agent, learner)
            learner, values = self._learn(learner, self._numbers, collected.trajectory)
            row = self._step.named(values)
            done.timesteps += collected.timesteps
            done.episodes += len(collected.returns)
            done.returns += collected.returns
            done.lengths += collected.lengths
            done.is_healthy = bool(row.pop("is_healthy"))
            if row.pop("updates"):
                rows.append(row)
            if self.normalizes:
                new = _moments_in(self.agent, collected.trajectory, collected.timesteps // self.envs.num_envs)
                done.seen = new if done.seen is None else merged_moments(done.seen, new)
            if not done.is_healthy:
                break
        self._learner = learner
        gradients, count = recorded(learner.agent)
        done.gradients, done.change = np.asarray(gradients)[: int(count)], np.asarray(learner.agent.params) - start
        done.metrics = {name: float(np.mean([row[name] for row in rows])) for name in (rows[0] if rows else ())}
        return done

    def close(self) -> None:
        """Ends the environments and their processes."""
        self.envs.close()

    def arrays(self) -> dict[str, np.ndarray]:
        """The part of the checkpoint's state that only this worker has, without the environments."""
        rng = json.dumps(self._collector.rng.bit_generator.state).encode()
        return to_arrays(self._own(self._learner)) | {"host/rng": np.frombuffer(rng, np.uint8)}


def worker_key(seed: int, number: int) -> Array:
    """The random key of one worker."""
    return jax.random.fold_in(keys.make(seed), number)


def statistics(values: Moments) -> Statistics:
    """Converts moments for the agents' normalisers."""
    return Statistics(*(np.asarray(value, np.float32) for value in values))


def _nothing_seen(agent: Agent[Any]) -> tuple[Statistics, Statistics]:
    shape = agent.context.observation.shape if agent.normalizes_observations else ()
    return tuple(jax.tree.map(jnp.asarray, normalizers.empty(each)) for each in (shape, ()))  # type: ignore[return-value]


def _moments_in(agent: Agent[Any], trajectory: Trajectory, length: int) -> NormalizerMoments:
    """The statistics of the first `length` timesteps: the rest of a rollout that ended early are copies."""
    observations, returns = (moments(each) for each in _nothing_seen(agent))
    if agent.normalizes_observations:
        observations = of_values(trajectory.observations[:length])
    if agent.context.normalize_rewards:
        returns = of_values(trajectory.running_returns[:length])
    return NormalizerMoments(observations, returns)
