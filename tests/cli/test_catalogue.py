from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steppe import agents


def test_agents_lists_every_agent_with_a_sentence(steppe: Any) -> None:
    rows = [row.split(maxsplit=1) for row in steppe("agents").out.splitlines()[1:-1]]
    assert {name for name, _ in rows} == {"random", "constant", "vpg", "ppo", "dqn"}
    assert all(sentence.strip().endswith(".") for _, sentence in rows)


def test_agents_spells_out_what_the_letters_stand_for(steppe: Any) -> None:
    sentences = json.loads(steppe("agents", "--json").out)
    assert sentences["ppo"].startswith("Proximal policy optimisation: ")
    assert sentences["vpg"].startswith("Vanilla policy gradient ")
    assert sentences["dqn"].startswith("Deep Q-learning: ")
    assert sentences["constant"] == "Always the same action."


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


@pytest.mark.parametrize("kind", ["agent", "experiment"])
def test_the_schema_knows_every_setting_of_every_agent(steppe: Any, kind: str) -> None:
    schema = json.loads(steppe("schema", kind).out)
    branches = (schema if kind == "agent" else schema["$defs"]["AgentSpec"])["oneOf"]
    known = {branch["properties"]["type"]["enum"][0]: set(branch["properties"]) - {"type"} for branch in branches}
    assert set(known) == set(agents.names())
    for name, settings in known.items():
        assert settings >= set(agents.settings_class(name).model_fields)
    assert schema["$defs"]["MemorySettings"]["properties"]["capacity"]["default"] == 50_000


@pytest.mark.parametrize("kind", ["environment", "network", "cluster"])
def test_other_schemas_need_no_jax(kind: str) -> None:
    code = (
        "import sys; from steppe.cli import main; "
        f"main(['schema', {kind!r}]); print('jax' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "False"


def test_an_agent_may_be_asked_for_in_its_old_spelling(steppe: Any) -> None:
    assert "discount" in steppe("agents", "ppo_agent").out
