"""Hogwild A2C in PyTorch, in the peers' virtual environment; prints its costs as one line of JSON.

Several processes update one model in shared memory without locks (PyTorch's own Hogwild example, A3C's shared RMSProp),
with one torch thread in each, no gradients while acting, and one forward and backward pass for each rollout. By default
it is written as its users do: gymnasium's CartPole in a SyncVectorEnv, torch's Categorical, the optimiser's defaults.
With --tuned it uses gymnasium's own vectorised CartPole, the cheapest draw of actions, and RMSProp's loops fused over
all parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn

DISCOUNT, ENTROPY, VALUE, NORM = 0.99, 0.01, 0.5, 0.5


class Model(nn.Module):
    """A policy and a value network of 64-64 tanh units each."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = layers(2), layers(1)


class SharedRMSProp(torch.optim.RMSprop):
    """RMSProp whose statistics lie in shared memory."""

    def __init__(self, model: Model, tuned: bool) -> None:
        super().__init__(model.parameters(), lr=7e-4, alpha=0.99, eps=1e-5, foreach=tuned or None)
        for group in self.param_groups:
            for parameter in group["params"]:
                square = torch.zeros_like(parameter).share_memory_()
                self.state[parameter] = {"step": torch.zeros(1).share_memory_(), "square_avg": square}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, required=True, help="environments of each worker")
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--timesteps", type=int, required=True, help="measured timesteps of all workers together")
    parser.add_argument("--warm-up", type=int, default=0, help="timesteps before the measuring begins")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--tuned", action="store_true", help="use everything that makes it faster")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    model = Model()
    model.share_memory()
    optimizer = SharedRMSProp(model, arguments.tuned)
    context = mp.get_context("fork")
    ready, results = context.Barrier(arguments.workers), context.Queue()
    workers = [
        context.Process(target=work, args=(index, arguments, model, optimizer, ready, results))
        for index in range(arguments.workers)
    ]
    for worker in workers:
        worker.start()
    reports = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    timesteps, wall = sum(each["timesteps"] for each in reports), max(each["wall"] for each in reports)
    costs = {
        "timesteps": timesteps,
        "cpu_us": 1e6 * sum(each["cpu"] for each in reports) / timesteps,
        "wall_us": 1e6 * wall / timesteps,
        "steps_per_second": timesteps / wall,
        "updates_per_second": timesteps / wall / (arguments.envs * arguments.horizon),
        "mean_return": float(np.mean([each["mean_return"] for each in reports])),
    }
    print(json.dumps({"version": version("torch"), **costs}))


def work(index: int, arguments: Any, model: Model, optimizer: SharedRMSProp, ready: Any, results: Any) -> None:
    """Collects rollouts and takes gradient steps until this process's share of the timesteps is done."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.manual_seed(1000 * arguments.seed + index)
    mode = "vector_entry_point" if arguments.tuned else "sync"
    envs = gymnasium.make_vec("CartPole-v1", num_envs=arguments.envs, vectorization_mode=mode)
    draw = draw_quickly if arguments.tuned else draw_by_distribution
    observations, _ = envs.reset(seed=1000 * arguments.seed + index)
    batch = arguments.envs * arguments.horizon
    episodes = Episodes(arguments.envs)
    for _ in range(-(-arguments.warm_up // (batch * arguments.workers))):
        observations = learn(model, optimizer, envs, observations, arguments.horizon, episodes, draw)
    ready.wait()
    rounds = -(-arguments.timesteps // (batch * arguments.workers))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        observations = learn(model, optimizer, envs, observations, arguments.horizon, episodes, draw)
    costs = {"timesteps": rounds * batch, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    results.put(costs | {"mean_return": episodes.mean()})


class Episodes:
    """The returns of the last episodes."""

    def __init__(self, envs: int) -> None:
        self.running, self.returns = np.zeros(envs), []

    def record(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        self.running += rewards
        if ended.any():
            self.returns.extend(self.running[ended].tolist())
            self.running[ended] = 0.0

    def mean(self) -> float:
        return float(np.mean(self.returns[-100:])) if self.returns else float("nan")


def draw_by_distribution(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits).sample()


def draw_quickly(logits: torch.Tensor) -> torch.Tensor:
    """Samples by the Gumbel-max trick."""
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def learn(
    model: Model,
    optimizer: SharedRMSProp,
    envs: Any,
    observations: np.ndarray,
    horizon: int,
    episodes: Episodes,
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> np.ndarray:
    """Collects a rollout and takes one gradient step; returns the observations after the rollout."""
    rows: list[tuple[Any, ...]] = []
    with torch.no_grad():
        for _ in range(horizon):
            before = torch.from_numpy(observations)
            actions = draw(model.policy(before))
            observations, rewards, terminated, truncated, _ = envs.step(actions.numpy())
            ended = terminated | truncated
            rows.append((before, actions, torch.from_numpy(rewards.astype(np.float32)), torch.from_numpy(ended)))
            episodes.record(rewards, ended)
        next_return = model.value(torch.from_numpy(observations))[:, 0]
        returns = torch.empty(horizon, len(observations))
        for t in reversed(range(horizon)):
            next_return = returns[t] = rows[t][2] + DISCOUNT * next_return * ~rows[t][3]
    inputs, actions = torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])
    log_probs = torch.log_softmax(model.policy(inputs), -1)
    values = model.value(inputs)[:, 0]
    errors = returns.reshape(-1) - values
    chosen = log_probs.gather(1, actions[:, None])[:, 0]
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = -(chosen * errors.detach()).mean() - ENTROPY * entropy + VALUE * errors.square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), NORM)
    optimizer.step()
    return observations


def layers(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


if __name__ == "__main__":
    main()
