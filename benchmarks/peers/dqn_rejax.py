"""DQN of rejax on gymnax's CartPole-v1, in the virtual environment of the JAX peers; prints its costs as JSON.

The hyper-parameters are those of DQN_JAX in contestants.py, under rejax's names. rejax compiles a whole training into
one program. It runs twice, the second time from the final state of the first run, and only the second run is measured:
by then the program is compiled and the memory is full. Nothing is evaluated, logged or saved.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import jax
from rejax import DQN

sys.path.insert(0, str(Path(__file__).parents[1]))

from window import Window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, required=True, help="of each of the two runs")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()

    dqn = make(arguments.timesteps)
    window = Window(0)
    train = jax.jit(lambda state: dqn.train(train_state=state)[0])
    state = jax.block_until_ready(train(jax.jit(dqn.init_state)(jax.random.key(arguments.seed))))
    window.mark(0)
    jax.block_until_ready(train(state))
    window.mark(arguments.timesteps)
    print(json.dumps({"version": version("rejax"), **window.costs()}))


def make(timesteps: int) -> DQN:
    """DQN with an update every 4 timesteps; rejax updates after each step of all environments, so it has 4 of them."""
    dqn = DQN.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "relu"},
        num_envs=4,
        num_epochs=1,
        buffer_size=10_000,
        fill_buffer=1_000,
        batch_size=128,
        learning_rate=1e-3,
        gamma=0.99,
        ddqn=False,
        polyak=0.0,
        target_update_freq=500,
        eps_start=1.0,
        eps_end=0.02,
        exploration_fraction=min(1.0, 10_000 / timesteps),
        total_timesteps=timesteps,
        eval_freq=timesteps,
        skip_initial_evaluation=True,
    )
    return dqn.replace(eval_callback=lambda algorithm, state, key: ())


if __name__ == "__main__":
    main()
