"""One run of stable-baselines3 or sbx, in the peers' virtual environment; prints its costs as one line of JSON.

The hyper-parameters are those of contestants.py in the words of these libraries; the rest are their defaults, which
are the same there and here. They log nothing and save nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from window import Window

DISTRIBUTIONS = {"stable_baselines3": "stable-baselines3", "sbx": "sbx-rl"}


class Watch(BaseCallback):
    """Marks the window between rollouts, and ends the training at a mean return of the last 100 episodes."""

    def __init__(self, warm_up: int, stop_at_return: float) -> None:
        super().__init__()
        self.window = Window(warm_up)
        self.stop_at_return = stop_at_return
        self.reached_at: float | None = None

    def mean_return(self) -> float:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return float(np.mean(returns)) if len(returns) == 100 else float("-inf")

    def _on_rollout_start(self) -> None:
        self.window.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return self.reached_at is None

    def _on_rollout_end(self) -> None:
        if self.stop_at_return < float("inf") and self.mean_return() >= self.stop_at_return:
            self.reached_at = time.time()

    def _on_training_end(self) -> None:
        self.window.mark(self.num_timesteps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=DISTRIBUTIONS)
    parser.add_argument("agent", choices=MAKERS)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--timesteps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=0, help="timesteps before the measuring begins")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, help="of torch; as many as it likes without this")
    parser.add_argument("--stop-at-return", type=float, default=float("inf"))
    parser.add_argument("--epochs", type=int, default=4, help="of ppo on CartPole-v1")
    parser.add_argument("--minibatches", type=int, default=4, help="of each of these epochs")
    arguments = parser.parse_args()

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    watch = Watch(arguments.warm_up, arguments.stop_at_return)
    model = MAKERS[arguments.agent](arguments)
    model.learn(arguments.timesteps, callback=watch)
    result: dict[str, Any] = {
        "version": version(DISTRIBUTIONS[arguments.library]),
        "reached_at": watch.reached_at,
        "trained_timesteps": watch.num_timesteps,
    }
    print(json.dumps(result | watch.window.costs()))


def make_ppo(arguments: argparse.Namespace) -> BaseAlgorithm:
    library, seed = arguments.library, arguments.seed
    return import_module(library).PPO(
        "MlpPolicy",
        make_vec_env(arguments.environment, n_envs=8, seed=seed),
        n_steps=128,
        n_epochs=arguments.epochs,
        batch_size=8 * 128 // arguments.minibatches,
        learning_rate=3e-4,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": activation(library, "tanh")},
        seed=seed,
        device="cpu",
    )


def make_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    library, seed = arguments.library, arguments.seed
    return import_module(library).DQN(
        "MlpPolicy",
        make_vec_env(arguments.environment, n_envs=1, seed=seed),
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=128,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=500,
        exploration_fraction=min(1.0, 10_000 / arguments.timesteps),
        policy_kwargs={"net_arch": [64, 64], "activation_fn": activation(library, "relu")},
        seed=seed,
        device="cpu",
    )


def make_sac(arguments: argparse.Namespace) -> BaseAlgorithm:
    library, seed = arguments.library, arguments.seed
    return import_module(library).SAC(
        "MlpPolicy",
        make_vec_env(arguments.environment, n_envs=1, seed=seed),
        learning_rate=3e-4,
        buffer_size=250_000,
        learning_starts=1_000,
        batch_size=256,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256], "activation_fn": activation(library, "relu")},
        seed=seed,
        device="cpu",
    )


def make_atari_ppo(arguments: argparse.Namespace) -> BaseAlgorithm:
    return import_module("stable_baselines3").PPO(
        "CnnPolicy",
        atari(arguments, 8),
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=2.5e-4,
        clip_range=0.1,
        seed=arguments.seed,
        device="cpu",
    )


def make_atari_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    return import_module("stable_baselines3").DQN(
        "CnnPolicy",
        atari(arguments, 1),
        learning_rate=1e-4,
        buffer_size=10_000,
        learning_starts=1_000,
        batch_size=32,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=1_000,
        seed=arguments.seed,
        device="cpu",
    )


def atari(arguments: argparse.Namespace, count: int) -> Any:
    """The usual preprocessing, four frames together."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env(arguments.environment, n_envs=count, seed=arguments.seed), n_stack=4)


def make_a2c(arguments: argparse.Namespace) -> BaseAlgorithm:
    envs = make_vec_env(arguments.environment, n_envs=8, seed=arguments.seed)
    return import_module("stable_baselines3").A2C("MlpPolicy", envs, seed=arguments.seed, device="cpu")


def make_trpo(arguments: argparse.Namespace) -> BaseAlgorithm:
    envs = make_vec_env(arguments.environment, n_envs=8, seed=arguments.seed)
    return import_module("sb3_contrib").TRPO(
        "MlpPolicy", envs, n_steps=256, batch_size=2048, n_critic_updates=10, seed=arguments.seed, device="cpu"
    )


def make_qr_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    return import_module("sb3_contrib").QRDQN(
        "MlpPolicy",
        make_vec_env(arguments.environment, n_envs=1, seed=arguments.seed),
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=128,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=500,
        policy_kwargs={"net_arch": [64, 64], "n_quantiles": 50},
        seed=arguments.seed,
        device="cpu",
    )


def make_ddpg(arguments: argparse.Namespace) -> BaseAlgorithm:
    return continuous("DDPG", arguments)


def make_td3(arguments: argparse.Namespace) -> BaseAlgorithm:
    return continuous("TD3", arguments)


def continuous(name: str, arguments: argparse.Namespace) -> BaseAlgorithm:
    return getattr(import_module("stable_baselines3"), name)(
        "MlpPolicy",
        make_vec_env(arguments.environment, n_envs=1, seed=arguments.seed),
        learning_rate=1e-3,
        buffer_size=250_000,
        learning_starts=1_000,
        batch_size=256,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256]},
        seed=arguments.seed,
        device="cpu",
    )


MAKERS = {
    "ppo": make_ppo,
    "dqn": make_dqn,
    "sac": make_sac,
    "atari_ppo": make_atari_ppo,
    "atari_dqn": make_atari_dqn,
    "a2c": make_a2c,
    "trpo": make_trpo,
    "qr_dqn": make_qr_dqn,
    "ddpg": make_ddpg,
    "td3": make_td3,
}


def activation(library: str, name: str) -> Any:
    """sbx takes its activations from flax, stable-baselines3 from torch."""
    if library == "sbx":
        return getattr(import_module("flax.linen"), name)
    return {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[name]


if __name__ == "__main__":
    main()
