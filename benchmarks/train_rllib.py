"""One run of RLlib on CartPole-v1, in a virtual environment of its own; prints its costs as one line of JSON."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

import ray
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from process_tree import TreeWindow

NETWORK = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", choices=CONFIGS)
    parser.add_argument("--timesteps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="timesteps before the measuring begins")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()

    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    algorithm = CONFIGS[arguments.agent](arguments.seed).build_algo()
    window, timesteps = TreeWindow(arguments.warm_up), 0
    while timesteps < arguments.timesteps:
        result = algorithm.train()
        timesteps = int(result["num_env_steps_sampled_lifetime"])
        window.mark(timesteps)
    algorithm.stop()
    ray.shutdown()
    print(json.dumps({"version": ray.__version__, **window.costs()}))


def ppo(seed: int) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig

    settings = {"train_batch_size_per_learner": 1024, "minibatch_size": 256, "num_epochs": 4, "lr": 3e-4}
    return _configured(PPOConfig(), seed, 128, settings)


def impala(seed: int) -> Any:
    from ray.rllib.algorithms.impala import IMPALAConfig

    return _configured(IMPALAConfig(), seed, 20, {"train_batch_size_per_learner": 160, "lr": 1e-3})


def _configured(config: Any, seed: int, horizon: int, settings: dict[str, Any]) -> Any:
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4, rollout_fragment_length=horizon)
        .learners(num_learners=0)
        .training(**settings)
        .rl_module(model_config=NETWORK)
        .debugging(seed=seed)
    )


CONFIGS = {"ppo": ppo, "impala": impala}

if __name__ == "__main__":
    main()
