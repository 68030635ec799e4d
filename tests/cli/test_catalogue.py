from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_agents_lists_every_agent_with_a_sentence(steppe: Any) -> None:
    rows = [row.split(maxsplit=1) for row in steppe("agents").out.splitlines()[1:-1]]
    assert {name for name, _ in rows} == {"random", "constant", "vpg", "ppo", "dqn"}
    assert all(sentence.strip().endswith(".") for _, sentence in rows)


def test_one_agents_settings_have_type_default_and_sentence(steppe: Any) -> None:
    rows = {row.split()[0]: row for row in steppe("agents", "dqn").out.splitlines()[2:]}
    assert "number" in rows["discount"]
    assert "0.99" in rows["discount"]
    assert "How much the future counts" in rows["discount"]
    assert "50000" in rows["memory.capacity"]


def test_environments_lists_the_compiled_ones_first(steppe: Any) -> None:
    ids = json.loads(steppe("environments", "--json").out)
    assert ids["CartPole-v1"] == "compiled"
    assert set(ids.values()) == {"compiled"}
    every = json.loads(steppe("environments", "--all", "--json").out)
    assert every["CartPole-v1"] == "compiled"
    assert every["FrozenLake-v1"] == "gymnasium"


def test_layers_lists_every_layer(steppe: Any) -> None:
    out = steppe("layers").out
    for layer in ("dense", "linear", "conv1d", "conv2d", "pool2d", "flatten", "dropout", "embedding", "layer_norm"):
        assert f"{layer}: " in out


@pytest.mark.parametrize("kind", ["experiment", "environment", "agent", "network", "cluster"])
def test_schemas_are_json(steppe: Any, kind: str) -> None:
    assert "$schema" in json.loads(steppe("schema", kind).out)


def test_init_prints_what_to_do_next(steppe: Any, here: Path) -> None:
    answer = steppe("init", "-n", "demo", "-r", "cloud-1")
    assert "steppe experiment new -f cartpole_ppo -n first --start" in answer.out
    assert json.loads((here / "steppe.json").read_text())["remote_id"] == "cloud-1"
    again = steppe("init")
    assert (again.code, "--force" in again.err) == (2, True)
    assert steppe("init", "--force").code == 0
