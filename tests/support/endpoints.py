"""Policies on disk, and real `steppe serve` processes that serve them."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Command, Steppe, wait_until

from policies import describe, tensors_for
from steppe.policies.policy import Policy, PolicyDescription
from steppe.specs.spaces import Box, Discrete


def save_policy(folder: Path, seed: int = 0, timestep: int = 7, environment: str = "CartPole-v1") -> Path:
    """Saves an untrained policy for CartPole-v1."""
    description: PolicyDescription = replace(
        describe(Box((4,)), Discrete(2)), environment=environment, timestep=timestep
    )
    return Policy(description, tensors_for(description, seed)).save(folder)


def save_balancing_policy(folder: Path) -> Path:
    """Saves a policy for CartPole-v1 that balances by pushing to the side to which the pole falls."""
    description = describe(Box((4,)), Discrete(2), layers=[{"type": "dense", "size": 1, "activation": "none"}])
    description = replace(description, environment="CartPole-v1", timestep=9)
    tensors = {name: np.zeros_like(each) for name, each in tensors_for(description).items()}
    (kernel,) = [name for name in tensors if name.startswith("torso/") and name.endswith("kernel")]
    tensors[kernel] = np.array([[0.1], [0.3], [1.0], [1.0]], np.float32)
    tensors["head/kernel"] = np.array([[-1.0, 1.0]], np.float32)
    return Policy(description, tensors).save(folder)


def write_router(folder: Path, **bandit: Any) -> Path:
    """Writes a graph file and its three policies beside it, of which the last one balances."""
    for number in (1, 2):
        save_policy(folder / f"bad{number}", seed=number)
    save_balancing_policy(folder / "good")
    graph = {"kind": "router", "branches": ["bad1", "bad2", "good"], "bandit": bandit or "epsilon_greedy"}
    file = folder / "router.json"
    file.write_text(json.dumps(graph))
    return file


@contextlib.contextmanager
def commands_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Runs real commands in an empty folder, without the environment's settings for endpoints; ends all afterwards."""
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
        """Policy -> number of its episodes that have been rewarded."""
        return {each["name"]: each["feedback"] for each in self.get("/standing")["endpoint"]["policies"]}

    def _ready_line(self) -> Any:
        assert not self.command.has_ended, self.command.answer()
        return re.search(r" at (https?://\S+?)(?: \(gRPC at port (\d+)\))?; play with: ", self.command.out)


def serve(shell: Steppe, *words: str, port: int = 0) -> Served:
    """Starts `steppe serve` and waits until it answers."""
    return Served(shell.launch("serve", *words, "--port", str(port)))
