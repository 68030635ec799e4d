"""A router over two random policies and one that balances, on the real CartPole."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from served_graphs import run, serving

from policies import describe, tensors_for
from steppe.policies.policy import Policy
from steppe.serve import Feedback, Question
from steppe.specs.spaces import Box, Discrete

BALANCING = np.array([[0.0], [0.3], [1.0], [0.6]], np.float32)
RUNNERS, EPISODES = 5, 200


def save_policies(root):
    """Two policies with random weights, and one that pushes to where the pole falls."""
    description = describe(Box((4,)), Discrete(2), layers=[{"type": "dense", "size": 1, "activation": "none"}])
    description = replace(description, environment="CartPole-v1")
    for index in range(2):
        Policy(description, tensors_for(description, index)).save(root / f"untrained{index}")
    tensors = {name: np.zeros_like(tensor) for name, tensor in tensors_for(description).items()}
    kernel = next(name for name in tensors if name.startswith("torso/") and name.endswith("/kernel"))
    tensors[kernel] = BALANCING
    tensors["head/kernel"] = np.array([[-1.0, 1.0]], np.float32)
    Policy(description, tensors).save(root / "trained")


async def play(endpoint, episodes, model=None):
    """The returns of that many episodes, a few of them concurrent, in the order of their ends."""
    environments = [gymnasium.make("CartPole-v1") for _ in range(RUNNERS)]
    returns, begun = [], 0

    def begin(runner):
        nonlocal begun
        begun += 1
        return [f"{model}-{begun}", environments[runner].reset(seed=begun)[0], 0.0]

    runs = [begin(runner) for runner in range(RUNNERS)]
    while len(returns) < episodes:
        for runner, (name, observation, total) in enumerate(runs):
            asked = Question(endpoint.check(observation), sequence_id=name, model=model)
            action = int(endpoint.answer(asked).actions[0])
            observation, reward, terminated, truncated, _ = environments[runner].step(action)
            runs[runner][1:] = observation, total + float(reward)
            if terminated or truncated:
                await endpoint.feedback(Feedback(runs[runner][2], sequence_id=name, sequence_end=True))
                returns.append(runs[runner][2])
                runs[runner] = begin(runner)
    for env in environments:
        env.close()
    return returns[:episodes]


@pytest.mark.learning
@pytest.mark.parametrize("bandit", ["epsilon_greedy", "ucb1", "thompson"])
def test_a_router_costs_little_of_the_best_policys_return(tmp_path, bandit):
    async def check():
        save_policies(tmp_path)
        graph = {"kind": "router", "bandit": bandit, "branches": ["untrained0", "untrained1", "trained"]}
        async with serving(tmp_path, graph) as endpoint:
            alone = np.mean(await play(endpoint, 20, "trained"))
            worst = max([np.mean(await play(endpoint, 20, f"untrained{index}")) for index in range(2)])
            assert alone > 400
            assert worst < 0.3 * alone
            returns = await play(endpoint, EPISODES)
            assert np.mean(returns[50:]) >= 0.85 * alone

    run(check())
