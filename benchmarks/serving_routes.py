"""The return of a trained policy on CartPole-v1 if a tenth of its traffic goes elsewhere, by step or by episode."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import numpy as np

import steppe
from interleave import Contestant, Run, conclude, interleave, is_quick
from steppe.serve import Question, load_endpoint

BEST = ("ppo", 100_000)
OTHERS: dict[str, tuple[str, int]] = {
    "ppo, one rollout": ("ppo", 1),
    "ppo, 10,000 timesteps": ("ppo", 10_000),
    "ppo, 20,000 timesteps": ("ppo", 20_000),
    "dqn, 10,000 timesteps": ("dqn", 10_000),
    "vpg, 30,000 timesteps": ("vpg", 30_000),
}
SHARE = 0.1
COLUMNS = {
    "alone": "the other policy alone",
    "best": "the trained one alone",
    "step": "a route a step",
    "episode": "a route an episode",
}


def main() -> int:
    quick = is_quick(__doc__)
    episodes, rounds = (2, 1) if quick else (50, 3)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        contestants = [
            Contestant(name, lambda seed, name=name: measured(root, name, seed, episodes))  # type: ignore[misc]
            for name in OTHERS
        ]
        runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [], quick, columns=COLUMNS, cost=None)


def measured(root: Path, name: str, seed: int, episodes: int) -> Run:
    """Mean returns of both policies alone and of their mixtures; each seed trains policies of its own."""
    policies = {"best": trained(root, *BEST, seed), "other": trained(root, *OTHERS[name], seed)}
    graph = {
        "kind": "abtest",
        "name": "both",
        "weights": [1 - SHARE, SHARE],
        "branches": [{"kind": "model", "name": each, "policy": str(path)} for each, path in policies.items()],
    }
    (root / "both.json").write_text(json.dumps(graph))
    modes: dict[str, dict[str, Any]] = {
        "alone": {"model": "other"},
        "best": {"model": "best"},
        "step": {},
        "episode": {"by_episode": True},
    }
    returns = {mode: asyncio.run(played(root, seed, episodes, **how)) for mode, how in modes.items()}
    return {"version": steppe.__version__, **returns}


def trained(root: Path, agent: str, timesteps: int, seed: int) -> Path:
    """The run folder of a policy; trains it at the first call."""
    folder = root / f"{agent}-{timesteps}-{seed}"
    if not folder.exists():
        steppe.train(
            "CartPole-v1",
            agent=agent,
            total_timesteps=timesteps,
            seed=seed,
            video=False,
            final_evaluation=None,
            folder=folder,
            progress=False,
        )
    return folder


async def played(root: Path, seed: int, episodes: int, model: str | None = None, by_episode: bool = False) -> float:
    """The mean return over episodes; `model` names the policy that plays, None leaves the choice to the graph."""
    with tempfile.TemporaryDirectory() as state:
        endpoint = load_endpoint(str(root / "both.json"), name="both", folder=Path(state), seed=seed)
        await endpoint.start()
        environment = gymnasium.make("CartPole-v1")
        returns = []
        for episode in range(episodes):
            observation, _ = environment.reset(seed=1_000 * seed + episode)
            total, over = 0.0, False
            while not over:
                asked = Question(
                    np.asarray(observation, np.float32)[None],
                    model=model,
                    sequence_id=f"episode-{episode}" if by_episode else None,
                )
                action = int(endpoint.answer(asked).actions[0])
                observation, reward, terminated, truncated, _ = environment.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
            await asyncio.sleep(0)
        environment.close()
        await endpoint.close()
    return mean(returns)


if __name__ == "__main__":
    sys.exit(main())
