"""One run of stable-baselines3 or sbx, in the peers' virtual environment; prints its costs as one line of JSON.

The hyper-parameters are those of contestants.py under these libraries' names; the others are their defaults, which are
the same as Steppe's. The libraries log nothing and save nothing.
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


class WindowCallback(BaseCallback):
    """Marks the window between rollouts and ends the training at a mean return over the last 100 episodes."""

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
    parser.add_argument("--threads", type=int, help="of torch; without it torch chooses")
    parser.add_argument("--stop-at-return", type=float, default=float("inf"))
    parser.add_argument("--epochs", type=int, default=4, help="of ppo on CartPole-v1")
    parser.add_argument("--minibatches", type=int, default=4, help="of each of these epochs")
    arguments = parser.parse_args()

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    callback = WindowCallback(arguments.warm_up, arguments.stop_at_return)
    model = MAKERS[arguments.agent](arguments)
    model.learn(arguments.timesteps, callback=callback)
    result: dict[str, Any] = {
        "version": version(DISTRIBUTIONS[arguments.library]),
        "reached_at": callback.reached_at,
        "trained_timesteps": callback.num_timesteps,
    }
    print(json.dumps(result | callback.window.costs()))


DQN = {
    "learning_rate": 1e-3,
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "batch_size": 128,
    "train_freq": 4,
    "gradient_steps": 1,
    "target_update_interval": 500,
}
CONTINUOUS = {
    "buffer_size": 250_000,
    "learning_starts": 1_000,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
}


def make_ppo(arguments: argparse.Namespace) -> BaseAlgorithm:
    return make(
        arguments,
        "PPO",
        envs=8,
        n_steps=128,
        n_epochs=arguments.epochs,
        batch_size=8 * 128 // arguments.minibatches,
        learning_rate=3e-4,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": activation(arguments.library, "tanh")},
    )


def make_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    network = {"net_arch": [64, 64], "activation_fn": activation(arguments.library, "relu")}
    fraction = min(1.0, 10_000 / arguments.timesteps)
    return make(arguments, "DQN", exploration_fraction=fraction, policy_kwargs=network, **DQN)


def make_sac(arguments: argparse.Namespace) -> BaseAlgorithm:
    network = {"net_arch": [256, 256], "activation_fn": activation(arguments.library, "relu")}
    return make(arguments, "SAC", learning_rate=3e-4, policy_kwargs=network, **CONTINUOUS)


def make_atari_ppo(arguments: argparse.Namespace) -> BaseAlgorithm:
    settings = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "clip_range": 0.1}
    return make_atari(arguments, "PPO", 8, settings)


def make_atari_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    settings = {"learning_rate": 1e-4, "buffer_size": 10_000, "batch_size": 32, "target_update_interval": 1_000}
    return make_atari(arguments, "DQN", 1, DQN | settings)


def make_atari(arguments: argparse.Namespace, algorithm: str, envs: int, settings: dict[str, Any]) -> BaseAlgorithm:
    """An agent of stable-baselines3 on Atari with the usual preprocessing and four stacked frames."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    frames = VecFrameStack(make_atari_env(arguments.environment, n_envs=envs, seed=arguments.seed), n_stack=4)
    make_agent = getattr(import_module("stable_baselines3"), algorithm)
    return make_agent("CnnPolicy", frames, seed=arguments.seed, device="cpu", **settings)


def make_a2c(arguments: argparse.Namespace) -> BaseAlgorithm:
    return make(arguments, "A2C", envs=8)


def make_trpo(arguments: argparse.Namespace) -> BaseAlgorithm:
    settings = {"n_steps": 256, "batch_size": 2048, "n_critic_updates": 10}
    return make(arguments, "TRPO", envs=8, package="sb3_contrib", **settings)


def make_qr_dqn(arguments: argparse.Namespace) -> BaseAlgorithm:
    network = {"net_arch": [64, 64], "n_quantiles": 50}
    return make(arguments, "QRDQN", package="sb3_contrib", policy_kwargs=network, **DQN)


def make_ddpg(arguments: argparse.Namespace) -> BaseAlgorithm:
    return make(arguments, "DDPG", learning_rate=1e-3, policy_kwargs={"net_arch": [256, 256]}, **CONTINUOUS)


def make_td3(arguments: argparse.Namespace) -> BaseAlgorithm:
    return make(arguments, "TD3", learning_rate=1e-3, policy_kwargs={"net_arch": [256, 256]}, **CONTINUOUS)


def make(
    arguments: argparse.Namespace, algorithm: str, envs: int = 1, package: str | None = None, **settings: Any
) -> BaseAlgorithm:
    """An agent of the chosen library, or of another package, for environments with observations of numbers."""
    make_agent = getattr(import_module(package or arguments.library), algorithm)
    environments = make_vec_env(arguments.environment, n_envs=envs, seed=arguments.seed)
    return make_agent("MlpPolicy", environments, seed=arguments.seed, device="cpu", **settings)


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
    """An activation function: sbx takes flax's, stable-baselines3 takes torch's."""
    if library == "sbx":
        return getattr(import_module("flax.linen"), name)
    return {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[name]


if __name__ == "__main__":
    main()
