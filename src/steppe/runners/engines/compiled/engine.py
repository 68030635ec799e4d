"""The compiled engine: acting, stepping and learning in one program, dispatched in chunks of many iterations."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from steppe.agents._base import ActorParams, Agent
from steppe.envs._base import CompiledEnv
from steppe.policies.policy import Policy
from steppe.runners import keys
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning
from steppe.runners.engines.compiled import compiled_window
from steppe.runners.engines.compiled.compiled_window import CompiledWindow, empty_window
from steppe.runners.engines.compiled.rollout import Envs, Finished, Rollout
from steppe.runners.engines.device_spread import AXIS, EVERYWHERE, DeviceSpread
from steppe.runners.engines.learning import LARGEST_TIMESTEP, Learner, begin, is_healthy, learn


class TrainingState(NamedTuple):
    """Everything that changes during training, and that a checkpoint holds."""

    learner: Learner
    envs: Envs
    window: CompiledWindow


class Columns(NamedTuple):
    """The results of each iteration; leaves [iterations]."""

    episodes: Array
    mean_return: Array
    mean_length: Array
    metrics: dict[str, Array]


class CompiledEngine(Engine):
    """One program for any number of iterations, so that chunk sizes change neither results nor compilation."""

    exact_resume = True
    rollout: Rollout

    def __init__(self, agent: Agent[Any], env: CompiledEnv, max_timesteps: int | None) -> None:
        context = agent.context
        self.agent = agent
        self.num_envs = context.num_envs
        self.shards = context.shards
        self.timesteps_per_iteration = agent.horizon * self.num_envs
        self.most_iterations = int(np.clip(2**20 // self.timesteps_per_iteration, 1, 1024))
        self.rollout = Rollout(agent, env, max_timesteps)
        self._spread = DeviceSpread(agent)
        places: Any = TrainingState(EVERYWHERE, P(AXIS), EVERYWHERE)  # type: ignore[arg-type]
        self._numbers = self._spread.put(agent.numbers, EVERYWHERE)
        scalars, columns = (EVERYWHERE,) * 5, (EVERYWHERE,) * 4
        chunk = self._spread.on_all_devices(self._chunk, (places, *scalars), (places, *columns))
        self._program = jit_for_learning(chunk, donate_argnums=0)
        self._begin = jax.jit(self._begun)
        self._play = self.rollout.compiled_play()
        self._run: TrainingState | None = None

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters and fresh episodes."""
        self._run = self._put(self._fresh(seed))

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores everything, so that the run continues bit for bit."""
        self._run = self._put(from_arrays(self._fresh(seed, pretrains=False), arrays))

    def snapshot(self) -> dict[str, np.ndarray]:
        """Agent, memory, environments and window."""
        return to_arrays(self._run)

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """One call of the compiled program."""
        self._run, done, reached, healthy, columns = self._program(
            self._run,
            self._numbers,
            # NumPy numbers: making each JAX number would run a small program.
            np.int32(iterations),
            np.int32(min(timestep, LARGEST_TIMESTEP)),
            np.int32(min(limits.episodes, 2**31 - 1) if limits.episodes is not None else 2**31 - 1),
            np.float32(np.inf if limits.stop_at_return is None else limits.stop_at_return),
        )
        count = int(done)
        named = {"timesteps": np.full(len(columns.episodes), self.timesteps_per_iteration)}
        named |= {"episodes": columns.episodes, "mean_return": columns.mean_return, "mean_length": columns.mean_length}
        named |= columns.metrics
        return Chunk(
            iterations=count,
            columns={name: np.asarray(column)[:count] for name, column in named.items()},
            has_reached_return=bool(reached),
            is_healthy=bool(healthy),
        )

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays all episodes side by side in one program."""
        assert self._run is not None
        # Like the saved policy, without the noise that some agents explore with.
        state = self._run.learner.agent
        acting = self._spread.first_copy(ActorParams(state.params, state.observations))
        returns, lengths = self._play(acting, keys.make(seed), episodes, greedy, jnp.int32(LARGEST_TIMESTEP))
        return float(np.mean(returns)), float(np.mean(lengths))

    def policy(self, timestep: int) -> Policy:
        """The policy as of the last iteration."""
        assert self._run is not None
        return self.agent.policy(self._run.learner.agent, timestep)

    def close(self) -> None:
        """Does nothing."""

    def _fresh(self, seed: int, pretrains: bool = True) -> TrainingState:
        agent_key, envs = self._begin(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32))
        return TrainingState(begin(self.agent, agent_key, pretrains), envs, empty_window())

    def _begun(self, words: Array) -> tuple[Array, Envs]:
        """The agent's key and fresh episodes, from the words of the seed's key: one small program instead of many."""
        agent_key, env_key = jax.random.split(keys.wrap(words))
        return agent_key, self.rollout.begin(env_key, self.num_envs, self.shards)

    def _chunk(
        self,
        run: TrainingState,
        numbers: dict[str, Array],
        iterations: Array,
        timestep: Array,
        episodes: Array,
        stop_at_return: Array,
    ) -> tuple[TrainingState, Array, Array, Array, Columns]:
        """(run, iterations done, return reached, healthy, columns [most_iterations])."""
        # Traced only once, for both the shapes and the loop.
        agent = self.agent.with_numbers(numbers)
        one_iteration = jax.jit(partial(self._iteration, agent, self.rollout.with_agent(agent)), inline=True)
        shapes = jax.eval_shape(one_iteration, run, timestep)[1]
        columns = jax.tree.map(lambda leaf: jnp.zeros((self.most_iterations,), leaf.dtype), shapes)

        def is_going(carry: tuple[TrainingState, Columns, Array, Array, Array, Array]) -> Array:
            _, _, done, finished, reached, healthy = carry
            return (done < iterations) & (finished < episodes) & ~reached & healthy

        def iteration(carry: tuple[TrainingState, Columns, Array, Array, Array, Array]) -> Any:
            run, columns, done, finished, _, _ = carry
            run, row = one_iteration(run, timestep + done * self.timesteps_per_iteration)
            columns = jax.tree.map(lambda column, value: column.at[done].set(value), columns, row)
            reached = compiled_window.has_reached(run.window, stop_at_return)
            return run, columns, done + 1, finished + row.episodes, reached, is_healthy(run.learner, row.metrics)

        start = (run, columns, jnp.int32(0), jnp.int32(0), jnp.bool_(False), jnp.bool_(True))
        run, columns, done, _, reached, healthy = jax.lax.while_loop(is_going, iteration, start)
        return run, done, reached, healthy, columns

    def _iteration(
        self, agent: Agent[Any], rollout: Rollout, run: TrainingState, timestep: Array
    ) -> tuple[TrainingState, Columns]:
        acting = agent.actor_params(run.learner.agent)
        envs, trajectory, finished = rollout.collect(run.envs, acting, timestep)
        learner, metrics = learn(agent, run.learner, trajectory)
        if self.shards > 1:
            finished = Finished(*(jax.lax.all_gather(leaf, AXIS, axis=1, tiled=True) for leaf in finished))
        window = compiled_window.record(run.window, *finished)
        row = Columns(
            episodes=finished.ended.sum(dtype=jnp.int32),
            mean_return=compiled_window.mean_return(window),
            mean_length=compiled_window.mean_length(window),
            metrics=self._spread.pmean(metrics),
        )
        return TrainingState(learner, envs, window), row

    def _put(self, run: TrainingState) -> TrainingState:
        """Puts the state on the devices that the program expects."""
        learner, window = (self._spread.put(tree, EVERYWHERE) for tree in (run.learner, run.window))
        return TrainingState(learner, self._spread.put(run.envs, P(AXIS)), window)
