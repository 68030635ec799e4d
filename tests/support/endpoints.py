"""Policies on disk and real `steppe serve` processes that answer for them."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Command, Steppe, wait_until

from policies import describe, tensors_for
from steppe.policies.policy import Policy, PolicyDescription
from steppe.specs.spaces import Box, Discrete


def save_policy(folder: Path, seed: int = 0, timestep: int = 7, environment: str = "CartPole-v1") -> Path:
    """A policy for CartPole-v1 that was never trained."""
    like = describe(Box((4,)), Discrete(2))
    made = PolicyDescription(
        "test", environment, timestep, like.observation, like.action, like.network, like.head, like.normalizer
    )
    return Policy(made, tensors_for(made, seed)).save(folder)


def save_balancing_policy(folder: Path) -> Path:
    """A policy for CartPole-v1 that balances: it pushes to where the pole falls."""
    like = describe(Box((4,)), Discrete(2), layers=[{"type": "dense", "size": 1, "activation": "none"}])
    made = PolicyDescription(
        "test", "CartPole-v1", 9, like.observation, like.action, like.network, like.head, like.normalizer
    )
    (kernel,) = [name for name in tensors_for(made) if name.startswith("torso/") and name.endswith("kernel")]
    tensors = {name: np.zeros_like(each) for name, each in tensors_for(made).items()}
    tensors[kernel] = np.array([[0.1], [0.3], [1.0], [1.0]], np.float32)
    tensors["head/kernel"] = np.array([[-1.0, 1.0]], np.float32)
    return Policy(made, tensors).save(folder)


def write_router(folder: Path, **bandit: Any) -> Path:
    """A graph file, and its three policies beside it: the last one balances."""
    for number in (1, 2):
        save_policy(folder / f"bad{number}", seed=number)
    save_balancing_policy(folder / "good")
    graph = {"kind": "router", "branches": ["bad1", "bad2", "good"], "bandit": bandit or "epsilon_greedy"}
    file = folder / "router.json"
    file.write_text(json.dumps(graph))
    return file


@contextlib.contextmanager
def commands_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands in an empty folder, without what the environment says of endpoints; all ended afterwards."""
    for name in ("STEPPE_SERVE_TOKEN", "STEPPE_SERVE_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    folder = place / "here"
    folder.mkdir()
    steppe = Steppe(folder, place / "outputs")
    yield steppe
    steppe.end()


class Served:
    """A running endpoint."""

    def __init__(self, command: Command) -> None:
        self.command = command
        line = wait_until(self._ready_line, "it serves")
        self.url: str = line[1]
        self.port = int(self.url.rpartition(":")[2])
        self.grpc_port = int(line[2]) if line[2] else None

    def get(self, path: str, token: str | None = None) -> Any:
        """The JSON at a path."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=60) as reply:
            return json.loads(reply.read())

    def rewarded(self) -> dict[str, int]:
        """How many episodes of each policy have been rewarded."""
        return {each["name"]: each["feedback"] for each in self.get("/standing")["endpoint"]["policies"]}

    def _ready_line(self) -> Any:
        assert not self.command.has_ended, self.command.answer()
        return re.search(r" at (https?://\S+?)(?: \(gRPC at port (\d+)\))?; play with: ", self.command.out)


def serve(shell: Steppe, *words: str, port: int = 0) -> Served:
    """Starts `steppe serve` and waits until it answers."""
    return Served(shell.launch("serve", *words, "--port", str(port)))
