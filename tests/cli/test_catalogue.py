from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from steppe import agents
from steppe.cli import catalogue
from steppe.specs.describing import field_rows
from steppe.specs.learning.layer_options import Activation
from steppe.specs.learning.network import Layer
from steppe.specs.learning.optimizer import OptimizerSpec


def test_agents_lists_every_agent_with_a_sentence(steppe: Any) -> None:
    rows = [row.split(maxsplit=1) for row in steppe("agents").out.splitlines()[1:-1]]
    assert [name for name, _ in rows] == agents.names()
    assert all(sentence.strip().endswith(".") for _, sentence in rows)


def test_agents_are_listed_without_importing_jax() -> None:
    code = "import sys; from steppe.cli import main; main(['agents']); print('jax' in sys.modules, file=sys.stderr)"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert child.stderr.strip() == "False"


def test_agents_spells_out_abbreviations(steppe: Any) -> None:
    sentences = json.loads(steppe("agents", "--json").out)
    assert set(sentences) - {"random", "constant"} == set(catalogue.FULL_NAMES)
    assert sentences["ppo"].startswith("Proximal policy optimisation: several")
    assert sentences["pqn"].startswith("Parallelised Q-learning: Q(lambda)")
    assert sentences["constant"] == "Always the same action."


def test_descriptions_of_variants_of_an_agent_differ(steppe: Any) -> None:
    sentences = json.loads(steppe("agents", "--json").out)
    assert len(set(sentences.values())) == len(sentences)
    for name, setting in {"ddqn": "n_step", "dqn_nstep": "n_step"}.items():
        default = agents.settings_class(name).model_fields[setting].default
        assert f"({setting} {default})" in sentences[name]


def test_one_agents_settings_have_type_default_and_sentence(steppe: Any) -> None:
    rows = {row.split()[0]: row for row in steppe("agents", "dqn").out.splitlines()[2:] if row.strip()}
    assert "number from 0 to 1" in rows["discount"]
    assert "0.99" in rows["discount"]
    assert "How much the future counts" in rows["discount"]
    assert "50000" in rows["memory.capacity"]
    assert '{"type": "epsilon_anneal", "final_epsilon": 0.02}' in rows["exploration"]


def test_an_agents_settings_come_with_the_objects_they_are_made_of(steppe: Any) -> None:
    rows = {row.split()[0]: row for row in steppe("agents", "ppo").out.splitlines()[2:] if row.strip()}
    assert "beta1 0.9, beta2 0.999" in rows['"adam"']
    assert "conv_sizes required" in rows['"cnn"']
    assert "length 2" in rows['"sequence"']
    assert '"gaussian_noise"' not in rows


@pytest.mark.parametrize("name", agents.names())
def test_every_setting_of_every_agent_is_shown(steppe: Any, name: str) -> None:
    shown = {row.split()[0].partition(".")[0] for row in steppe("agents", name).out.splitlines() if row.strip()}
    fields = agents.settings_class(name).model_fields
    assert {field for field in fields if not fields[field].exclude} <= shown


def test_environments_lists_one_of_each_kind(steppe: Any) -> None:
    kinds = {id: entry["kind"] for id, entry in json.loads(steppe("environments", "--json").out).items()}
    assert kinds["CartPole-v1"] == "compiled"
    assert set(kinds.values()) == {"compiled", "remote", "atari", "mujoco", "box2d", "minigrid"}
    assert "ALE/Breakout-v5" in steppe("environments").out


def test_all_environments_are_those_that_gymnasium_knows_too(steppe: Any) -> None:
    every = json.loads(steppe("environments", "--all", "--json").out)
    assert every["CartPole-v1"]["kind"] == "compiled"
    assert every["FrozenLake-v1"]["kind"] == "gymnasium"


@pytest.mark.parametrize(
    ("name", "setting", "default"),
    [
        ("GridWorld", "width", 5),
        ("ue4", "num_ticks", 4),
        ("remote", "timeout", 60.0),
        ("FrozenLake-v1", "is_slippery", True),
        ("LunarLander-v2", "gravity", -10.0),
    ],
)
def test_one_environments_settings_have_their_defaults(steppe: Any, name: str, setting: str, default: Any) -> None:
    if name.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    assert json.loads(steppe("environments", name, "--json").out)[setting]["default"] == default
    assert f"  {setting} " in steppe("environments", name).out


def test_an_environments_old_name_is_translated_with_a_notice(steppe: Any) -> None:
    pytest.importorskip("ale_py")
    out = steppe("environments", "Pong-v0").out
    assert 'environment "Pong-v0" now is "ALE/Pong-v5"' in out
    assert "frame_stack" in out


def test_layers_lists_every_layer_and_every_activation(steppe: Any) -> None:
    out = steppe("layers").out
    for layer in field_rows.members(Layer):
        assert f"\n{layer}: " in f"\n{out}"
    assert ", ".join(get_args(Activation)) in out


def test_one_layer_is_shown_alone(steppe: Any) -> None:
    out = steppe("layers", "lstm").out
    assert out.startswith("lstm: ")
    assert "activations" not in out
    assert "dense: " not in out
    assert "activations" in steppe("layers", "conv2d").out
    assert "size" in json.loads(steppe("layers", "lstm", "--json").out)["properties"]


@pytest.mark.parametrize(
    ("words", "way_out"),
    [(("agents", "pppo"), '"ppo"'), (("layers", "dens"), '"dense"'), (("environments", "FrozenLak-v1"), '"FrozenLake')],
)
def test_an_unknown_name_gets_the_nearest_one(steppe: Any, words: tuple[str, ...], way_out: str) -> None:
    answer = steppe(*words)
    assert answer.code == 2
    assert f"did you mean {way_out}" in answer.err


@pytest.mark.parametrize("kind", ["experiment", "environment", "agent", "network", "cluster", "graph"])
def test_schemas_are_json(steppe: Any, kind: str) -> None:
    assert "$schema" in json.loads(steppe("schema", kind).out)


def test_init_prints_what_to_do_next(steppe: Any, here: Path) -> None:
    answer = steppe("init", "-n", "demo", "-r", "cloud-1")
    assert "steppe experiment new -f cartpole_ppo -n first --start" in answer.out
    assert json.loads((here / "steppe.json").read_text())["remote_id"] == "cloud-1"
    again = steppe("init")
    assert (again.code, "--force" in again.err) == (2, True)
    assert steppe("init", "--force").code == 0


def test_init_with_force_keeps_the_projects_name_and_its_cloud(steppe: Any, here: Path) -> None:
    assert steppe("init", "-n", "demo", "--remote-project-id", "cloud-1").code == 0
    assert steppe("init", "--force").code == 0
    about = json.loads((here / "steppe.json").read_text())
    assert (about["name"], about["remote_id"]) == ("demo", "cloud-1")
    assert steppe("init", "--force", "-n", "other").code == 0
    about = json.loads((here / "steppe.json").read_text())
    assert (about["name"], about["remote_id"]) == ("other", "cloud-1")
    # An unreadable one is written anew.
    (here / "steppe.json").write_text("{")
    assert steppe("init", "--force").code == 0
    assert json.loads((here / "steppe.json").read_text())["name"] == here.name


def test_init_lists_the_parts_of_an_old_project(steppe: Any, here: Path) -> None:
    (here / ".tensorforce.json").write_text(json.dumps({"name": "invaders", "remote_id": "cloud-1"}))
    assert (
        steppe("experiment", "list").out
        == "no experiments yet; make one: steppe experiment new -f cartpole_ppo -n first\n"
    )
    answer = steppe("init")
    assert answer.code == 0
    assert 'its name, "invaders"' in answer.out
    assert "no file changed" in answer.out
    assert sorted(path.name for path in here.iterdir() if path.is_file()) == [".tensorforce.json", "steppe.json"]


@pytest.mark.parametrize("kind", ["agent", "experiment"])
def test_the_schema_knows_every_setting_of_every_agent(steppe: Any, kind: str) -> None:
    schema = json.loads(steppe("schema", kind).out)
    branches = (schema if kind == "agent" else schema["$defs"]["AgentSpec"])["oneOf"]
    known = {branch["title"]: set(branch["properties"]) - {"type"} for branch in branches if "properties" in branch}
    assert set(known) == set(agents.names())
    for name, settings in known.items():
        assert settings >= set(agents.settings_class(name).model_fields)
    _, memory = schema["$defs"]["MemorySettings"]["anyOf"]
    assert memory["properties"]["capacity"]["anyOf"][0]["default"] == 50_000


@pytest.mark.parametrize("kind", ["environment", "network", "cluster", "graph"])
def test_other_schemas_need_no_jax(kind: str) -> None:
    code = (
        "import sys; from steppe.cli import main; "
        f"main(['schema', {kind!r}]); print('jax' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "False"


def test_an_agent_may_be_asked_for_in_its_old_spelling(steppe: Any) -> None:
    assert "discount" in steppe("agents", "ppo_agent").out


def test_settings_are_shown_with_the_names_they_had(steppe: Any) -> None:
    rows = {row.split()[0]: row for row in steppe("agents", "ppo").out.splitlines()[2:] if row.strip()}
    assert "Also spelled `step_optimizer`." in rows["optimizer"]
    assert "Also spelled `baseline_mode`." in rows["share_network"]
    assert rows["entropy_coefficient"].count("entropy_regularization") == 1
    rows = {row.split()[0]: row for row in steppe("agents", "dqn").out.splitlines()[2:] if row.strip()}
    assert "quantiles are learned. Also spelled `huber_loss`." in rows["huber"]
    assert "over time. Also spelled `actions_exploration`, `explorations_spec`." in rows["exploration"]


def test_the_newest_version_of_an_environment_comes_first(steppe: Any) -> None:
    names = [row.split()[0] for row in steppe("environments").out.splitlines()[1:]]
    assert names[:3] == ["Acrobot-v1", "CartPole-v1", "CartPole-v0"]


@pytest.mark.parametrize(
    ("agent", "refused"),
    [
        ("dqn", {"natural_gradient"}),
        ("dqfd", {"natural_gradient"}),
        ("sac", {"natural_gradient", "evolutionary", "optimized_step"}),
        ("ppo", set()),
        ("trpo", {"natural_gradient"}),
    ],
)
def test_only_optimizers_that_an_agent_takes_are_listed_with_it(steppe: Any, agent: str, refused: set[str]) -> None:
    words = {row.split()[0].strip('"') for row in steppe("agents", agent).out.splitlines() if row.strip()}
    assert set(field_rows.members(OptimizerSpec)) - words == refused
