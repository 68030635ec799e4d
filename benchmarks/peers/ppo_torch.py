"""PPO on Atari in one PyTorch loop, in the peers' virtual environment; prints its costs as one line of JSON.

It stands for CleanRL with EnvPool, whose wheels for today's Pythons come without games, and was written from the
algorithm: no library between loop and network, all games stepped together in C++ by ale-py's vector environment,
channels last, one fused Adam. It logs nothing and saves nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from window import Window

ENVS, HORIZON, EPOCHS, MINIBATCHES = 8, 128, 4, 4
DISCOUNT, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5


class Model(nn.Module):
    """The network of the DQN paper in Nature, with a policy and a value on top."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        gain = 2**0.5
        self.torso = nn.Sequential(
            *(initialised(nn.Conv2d(4, 32, 8, 4), gain), nn.ReLU()),
            *(initialised(nn.Conv2d(32, 64, 4, 2), gain), nn.ReLU()),
            *(initialised(nn.Conv2d(64, 64, 3, 1), gain), nn.ReLU(), nn.Flatten()),
            *(initialised(nn.Linear(64 * 7 * 7, 512), gain), nn.ReLU()),
        )
        self.policy = initialised(nn.Linear(512, actions), 0.01)
        self.value = initialised(nn.Linear(512, 1), 1.0)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes [B, 4, 84, 84] -> log-probabilities [B, actions], values [B]."""
        scaled = pictures.float().div_(255.0).contiguous(memory_format=torch.channels_last)
        features = self.torso(scaled)
        return torch.log_softmax(self.policy(features), -1), self.value(features)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--timesteps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=0, help="timesteps before the measuring begins")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of torch")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    envs = AtariVectorEnv(arguments.game, ENVS, autoreset_mode=AutoresetMode.SAME_STEP, episodic_life=True)
    model = Model(int(envs.single_action_space.n)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    window, timestep = Window(arguments.warm_up), 0
    observations = torch.from_numpy(envs.reset(seed=arguments.seed)[0])
    while timestep < arguments.timesteps:
        window.mark(timestep)
        observations, rollout = collect(envs, model, observations)
        learn(model, optimizer, rollout)
        timestep += ENVS * HORIZON
    window.mark(timestep)
    print(json.dumps({"version": version("torch"), **window.costs()}))


def initialised(layer: nn.Module, gain: float) -> nn.Module:
    """Sets orthogonal weights and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@torch.no_grad()
def collect(envs: AtariVectorEnv, model: Model, observations: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(observations after the rollout, its (pictures, actions, log-probabilities, advantages, returns))."""
    pictures = torch.zeros((HORIZON, ENVS, 4, 84, 84), dtype=torch.uint8)
    actions = torch.zeros((HORIZON, ENVS), dtype=torch.int64)
    log_probs, rewards, ends = (torch.zeros((HORIZON, ENVS)) for _ in range(3))
    values = torch.zeros((HORIZON + 1, ENVS))
    for t in range(HORIZON):
        pictures[t] = observations
        logits, values[t] = model(observations)
        actions[t] = torch.multinomial(logits.exp(), 1)[:, 0]
        log_probs[t] = logits.gather(1, actions[t, :, None])[:, 0]
        frames, scores, terminated, truncated, _ = envs.step(actions[t].numpy())
        observations = torch.from_numpy(frames)
        rewards[t] = torch.from_numpy(scores.astype(np.float32))
        ends[t] = torch.from_numpy((terminated | truncated).astype(np.float32))
    values[HORIZON] = model(observations)[1]
    advantages, next_advantage = torch.zeros((HORIZON, ENVS)), torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        continues = 1.0 - ends[t]
        error = rewards[t] + DISCOUNT * values[t + 1] * continues - values[t]
        next_advantage = advantages[t] = error + DISCOUNT * LAMBDA * continues * next_advantage
    rows = (pictures, actions, log_probs, advantages, advantages + values[:-1])
    return observations, tuple(each.flatten(0, 1) for each in rows)


def learn(model: Model, optimizer: torch.optim.Optimizer, rollout: tuple[Tensor, ...]) -> None:
    """Epochs over shuffled minibatches of a rollout."""
    samples = ENVS * HORIZON
    for _ in range(EPOCHS):
        for chosen in torch.randperm(samples).chunk(MINIBATCHES):
            pictures, actions, old, advantages, returns = (each[chosen] for each in rollout)
            logits, values = model(pictures)
            ratio = (logits.gather(1, actions[:, None])[:, 0] - old).exp()
            scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            surrogate = torch.min(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
            entropy = -(logits.exp() * logits).sum(-1).mean()
            loss = VALUE * 0.5 * (values - returns).square().mean() - surrogate - ENTROPY * entropy
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()


if __name__ == "__main__":
    main()
