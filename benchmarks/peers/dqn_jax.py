"""DQN on gymnax's CartPole-v1 as one compiled JAX loop, in the virtual environment of the JAX peers; prints its costs.

It stands for the programs of PureJaxRL's users and was written from the algorithm: environment, replay memory
(flashbax), network (flax) and optimiser (optax) in one `scan`. It draws with replacement, as Steppe does. The
hyper-parameters are those of DQN_JAX in contestants.py. The program runs twice, the second time from the final state
of the first run, and only the second run is measured: by then the program is compiled and the memory is full. Nothing
is evaluated, logged or saved.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import flashbax
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import Array

sys.path.insert(0, str(Path(__file__).parents[1]))

from window import Window

ENVS, BATCH, CAPACITY, LEARNING_STARTS = 4, 128, 10_000, 1_000
DISCOUNT, LEARNING_RATE, TARGET_EVERY = 0.99, 1e-3, 125
EPSILON, EXPLORING = 0.02, 10_000


class State(NamedTuple):
    """Everything that changes during training."""

    params: Any
    target: Any
    optimizer: Any
    memory: Any
    envs: Any
    observations: Array
    key: Array
    iterations: Array


class Network(nn.Module):
    """Two hidden layers, then a value for each action."""

    actions: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(self.actions)(x)


ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
NETWORK = Network(ENV.num_actions)
OPTIMIZER = optax.adam(LEARNING_RATE)
MEMORY = flashbax.make_item_buffer(CAPACITY, LEARNING_STARTS, BATCH, add_batches=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, required=True, help="of each of the two runs")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()

    iterations = arguments.timesteps // ENVS
    window = Window(0)
    program = jax.jit(partial(train, iterations=iterations), donate_argnums=0)
    state = jax.block_until_ready(program(begin(jax.random.key(arguments.seed))))
    window.mark(0)
    jax.block_until_ready(program(state))
    window.mark(iterations * ENVS)
    print(json.dumps({"version": f"flashbax {version('flashbax')}", **window.costs()}))


@jax.jit
def begin(key: Array) -> State:
    """Fresh parameters and fresh episodes."""
    params_key, reset_key, key = jax.random.split(key, 3)
    observations, envs = jax.vmap(ENV.reset, (0, None))(jax.random.split(reset_key, ENVS), ENV_PARAMS)
    params = NETWORK.init(params_key, observations)
    one = observations[0]
    item = (one, jnp.int32(0), jnp.float32(0), jnp.bool_(False), one)
    memory = MEMORY.init(item)
    target = jax.tree.map(jnp.copy, params)
    return State(params, target, OPTIMIZER.init(params), memory, envs, observations, key, jnp.int32(0))


def train(state: State, iterations: int) -> State:
    """The state after a number of iterations."""
    return jax.lax.scan(lambda state, _: (iteration(state), None), state, None, length=iterations)[0]


def iteration(state: State) -> State:
    """One timestep in every environment, and one update."""
    key, choice_key, random_key, step_key, sample_key = jax.random.split(state.key, 5)
    epsilon = 1.0 + (EPSILON - 1.0) * jnp.minimum(state.iterations * ENVS / EXPLORING, 1.0)
    greedy = NETWORK.apply(state.params, state.observations).argmax(-1)
    uniform = jax.random.randint(random_key, (ENVS,), 0, ENV.num_actions)
    actions = jnp.where(jax.random.uniform(choice_key, (ENVS,)) < epsilon, uniform, greedy)
    observations, envs, rewards, ends, _ = jax.vmap(ENV.step, (0, 0, 0, None))(
        jax.random.split(step_key, ENVS), state.envs, actions, ENV_PARAMS
    )
    memory = MEMORY.add(state.memory, (state.observations, actions, rewards, ends, observations))
    learned = (state.params, state.target, state.optimizer)
    learned = jax.lax.cond(
        MEMORY.can_sample(memory), lambda: update(learned, MEMORY.sample(memory, sample_key)), lambda: learned
    )
    params, target, optimizer = learned
    is_due = (state.iterations + 1) % TARGET_EVERY == 0
    target = jax.lax.cond(is_due, lambda: params, lambda: target)
    return State(params, target, optimizer, memory, envs, observations, key, state.iterations + 1)


def update(learned: tuple[Any, Any, Any], batch: Any) -> tuple[Any, Any, Any]:
    """One gradient step on a batch."""
    params, target, optimizer = learned
    observations, actions, rewards, ends, next_observations = batch.experience
    targets = rewards + DISCOUNT * (1.0 - ends) * NETWORK.apply(target, next_observations).max(-1)

    def loss(params: Any) -> Array:
        values = NETWORK.apply(params, observations)
        chosen = jnp.take_along_axis(values, actions[:, None], 1)[:, 0]
        return optax.l2_loss(chosen, targets).mean()

    steps, optimizer = OPTIMIZER.update(jax.grad(loss)(params), optimizer)
    return optax.apply_updates(params, steps), target, optimizer


if __name__ == "__main__":
    main()
