"""`steppe schema KIND` accepts and refuses the same files as the loader, as far as a schema can."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import steppe.experiments
from steppe import agents
from steppe.cli.catalogue import full_schema
from steppe.errors import SteppeError
from steppe.spec_files import load_experiment
from steppe.specs.describing.json_schema import KINDS
from steppe.specs.serving import load_graph

TEMPLATES = Path(steppe.experiments.__file__).parent / "templates"
DOCS = Path(__file__).parents[2] / "docs"


@cache
def checker(kind: str) -> Any:
    schema = full_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def mistakes(kind: str, data: Any) -> list[str]:
    """The schema's errors for a file's content, which passes through JSON as in an editor."""
    return [error.message for error in checker(kind).iter_errors(json.loads(json.dumps(data)))]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(TEMPLATES, tmp_path / "configs")
    (tmp_path / "steppe.json").write_text("{}")
    return tmp_path


def load(kind: str, data: Any, project: Path) -> None:
    """Loads the data as a file of its kind, inside an experiment unless it is a graph."""
    folder = project / "configs" / f"{kind}s"
    (folder / "written.json").write_text(json.dumps(data))
    if kind == "graph":
        load_graph("written", project)
        return
    if kind == "experiment":
        spec = load_experiment("written", {}, [], project)
    else:
        given = {"name": "x", "environment": "CartPole-v1", kind: "written"}
        spec = load_experiment(None, given, [], project)
    spec.agent.settings_as(agents.agent_class(spec.agent).Settings)


def templates() -> list[Any]:
    return [
        pytest.param(folder.name.removesuffix("s"), json.loads(path.read_text()), id=f"{folder.name}/{path.stem}")
        for folder in sorted(TEMPLATES.iterdir())
        for path in sorted(folder.glob("*.json"))
    ]


def examples() -> list[Any]:
    """Every JSON block in the docs that is a file, with its kind."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        blocks = re.findall(r"^```json\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for number, text in enumerate(blocks):
            if kind := kind_of(json.loads(text)):
                found.append(pytest.param(kind, json.loads(text), id=f"{page.stem}-{number}"))
    return found


def kind_of(data: Any) -> str | None:
    if isinstance(data, list):
        return "network"
    return next((kind for name, kind in FIRST_FIELDS.items() if name in data), None)


FIRST_FIELDS = {
    # These two are answers of an endpoint.
    "model_name": None,
    "applied": None,
    "kind": "graph",
    "environment": "experiment",
    "id": "environment",
    "type": "agent",
}

AGENTS: list[Any] = [
    "ppo",
    "ppo_agent",
    {"$schema": "agent.schema.json", "type": "ppo"},
    {"type": "PPOAgent"},
    {"type": "tensorforce.agents.DQNNstepAgent"},
    "tensorforce.agents.dqn_nstep_agent",
    "dqn-nstep",
    "acktr_agent",
    {"type": "tensorforce.agents.ACKTRAgent", "learning_rate": 0.01},
    {"type": "dqn", "optimizer": "adam"},
    {"type": "dqn", "optimizer": {"type": "adam", "learning_rate": 1e-3}},
    {"type": "dqn", "optimizer": {"type": "multi_step", "optimizer": {"type": "adam", "learning_rate": 1e-3}}},
    {"type": "ppo", "optimizer": {"type": "adam", "learning_rate": {"type": "linear", "initial_value": 1e-3}}},
    {"type": "dqn", "memory": "prioritized_replay"},
    {"type": "dqn", "memory": {"type": "prioritized_replay", "prioritization_weight": 0.5}},
    {"type": "dqn", "exploration": "constant"},
    {"type": "dqn", "exploration": {"type": "constant", "epsilon": 0.1}},
    {"type": "dqn", "exploration": {"type": "linear_decay", "initial_value": 1.0, "final_value": 0.1}},
    {"type": "ddpg", "exploration": "ornstein_uhlenbeck"},
    {"type": "ppo", "states_preprocessing": "standardize"},
    {"type": "ppo", "states_preprocessing": ["grayscale", {"type": "sequence", "length": 4, "add_rank": -1}]},
    {"type": "ppo", "states_preprocessing": {"type": "divide", "value": 255}},
    {"type": "ppo", "states_preprocessing": {"state": [{"type": "grayscale"}]}},
    {"type": "ppo", "reward_preprocessing": [{"type": "clip", "min": -1, "max": 1}]},
    {"type": "ppo", "gae_lambda": None},
    {"type": "dqn", "update_mode": {"unit": "timesteps", "batch_size": 64, "frequency": 4}},
    {"type": "ppo", "update_mode": {"unit": "timesteps", "batch_size": 256}, "memory": {"type": "latest"}},
    {"type": "vpg", "update_mode": {"unit": "episodes", "batch_size": 20, "frequency": 20}, "memory": "latest"},
    {"type": "dqn_nstep", "update_mode": {"unit": "episodes", "batch_size": 10}, "memory": "latest"},
    {"type": "dqn_nstep", "memory": {"type": "latest", "capacity": 10000, "include_next_states": True}},
    {"type": "dqn", "actions_exploration": {"type": "epsilon_anneal", "timesteps": 1e6}},
    {"type": "dqn", "double_q_model": True, "huber_loss": None},
    {"type": "dqn", "huber_loss": 1.0},
    {"type": "ppo", "step_optimizer": {"type": "adam", "learning_rate": 1e-3}},
    {"type": "ppo", "likelihood_ratio_clipping": None, "entropy_regularization": None},
    {"type": "ppo", "baseline_mode": "states", "baseline": {"type": "mlp", "sizes": [32, 32]}},
    {"type": "ppo", "baseline_mode": "network"},
    {"type": "ppo", "distributions": {"type": "beta"}},
    {"type": "ppo", "distributions": {"action": {"type": "beta"}}},
    {"type": "ppo", "distribution": "gaussian"},
    {"type": "ppo", "gamma": 0.9},
    {"type": "ppo", "saver": None, "device": None},
    {"type": "ppo", "execution": {"type": "single", "session_config": None, "distributed_spec": None}},
    {"type": "dqn", "saver": {"directory": None, "seconds": 600}, "summarizer": {"directory": None, "labels": []}},
    {"type": "dqn", "batched_observe": True, "scope": "dqn", "log_level": "info", "normalize_rewards": False},
    {"type": "random", "saver": None, "batched_observe": 512},
    {"type": "dqn", "variable_noise": None, "entropy_regularization": 0.0, "distributions": None},
    {"type": "dqn", "optimizer": None, "discount": None, "memory": None, "learning_rate": None},
    {"type": "dqn", "memory": {"type": "replay", "random_sampling": True, "capacity": None}},
    {"type": "dqn", "update_mode": {"unit": None, "batch_size": 8, "first_update": 9}, "repeat_update": 2},
    {"type": "dqn", "first_update": 0, "preprocessing": ["grayscale"], "reward_preprocessing_spec": None},
    {"type": "dqn", "explorations_spec": {"type": "epsilon_decay", "epsilon": 0.9, "epsilon_final": 0.1}},
    {"type": "dqn", "exploration": {"final_epsilon": 0.1}, "optimizer": {"beta1": 0.8}},
    {"type": "dqn", "actions_exploration": {"action": {"type": "constant"}}},
    {"type": "ppo", "batch_size": 512},
    {"type": "ppo", "memory": {"type": "latest", "include_next_states": False, "capacity": 5000}, "batch_size": 512},
    {"type": "ppo", "learning_rate": {"type": "linear", "initial_value": 1e-3, "final_value": 0}},
    {"type": "ppo", "distributions": {"type": "gaussian", "mean": 0.0, "log_stddev": 0.5, "scope": None}},
    {"type": "ppo", "baseline": "none"},
    {"type": "ppo", "baseline": {"type": "network", "network": "mlp_64_tanh"}},
    {"type": "ddpg", "critic_network": "mlp_64_tanh"},
    {"type": "vpg", "baseline_mode": None, "baseline": None, "baseline_optimizer": None},
    {"type": "ppo", "baseline": {"state": {"type": "mlp", "sizes": [8]}}},
    {"type": "ppo", "baseline": {"type": "aggregated", "baselines": {"state": {"type": "cnn", "conv_sizes": [8]}}}},
    {"type": "ppo", "optimizer": {"type": "multi_step", "unroll_loop": False, "optimizer": "adam"}},
    {"type": "ppo", "optimizer": {"type": "evolutionary", "num_samples": 8, "unroll_loop": False}},
    {"type": "ppo", "baseline": {"type": "network", "network": {"type": "layered", "layers": [{"type": "flatten"}]}}},
    {"type": "ddpg", "critic_network": {"size_t0": 64, "size_t1": 64}},
    {"type": "constant", "action_values": 1},
    {"type": "ddpg", "critic_network": [{"type": "dense", "size": 8, "activation": "lrelu"}]},
]
NETWORKS: list[Any] = [
    [{"type": "dense", "size": 8, "activation": "lrelu"}],
    [{"type": "dense", "size": 8, "activation": {"name": "relu"}}],
    [{"type": "conv2d", "size": 8, "window": [3, 5], "padding": "same"}, {"type": "pool2d", "pooling_type": "mean"}],
    [{"type": "input", "names": "state"}, {"type": "output", "output": "x"}, {"type": "input", "inputs": ["x"]}],
    [[{"type": "input", "inputs": ["a"]}, {"type": "output", "name": "b"}], [{"type": "input", "names": ["b"]}]],
    [{"type": "my_layers:Mine", "width": 3}],
    [{"type": "flatten"}, {"type": "tf_layer", "layer": "batch_normalization", "center": True, "momentum": 0.9}],
    {"layers": [{"type": "dense", "size": 1e2}]},
    {"$schema": "network.schema.json", "layers": [{"type": "flatten"}]},
]
ENVIRONMENTS: list[Any] = [
    "CartPole-v1",
    {"id": "CartPole-v1"},
    {"$schema": "environment.schema.json", "id": "CartPole-v1"},
    {"gym_id": "CartPole-v0"},
    {"type": "CartPole-v1"},
    {"type": "tensorforce.contrib.openai_gym.OpenAIGym", "gym_id": "SpaceInvaders-v0", "monitor": "x"},
    {"type": "openai_gym", "level": "CartPole-v1", "visualize": False},
    {"type": "ale", "rom": "breakout.bin", "frame_skip": 4, "loss_of_life_termination": True},
    {"type": "minimal_test", "specification": {"int": []}},
    {"type": "remote", "address": "127.0.0.1:5555"},
    {"type": "remote", "host": "127.0.0.1", "port": 5555, "timeout": 3},
    {"id": "remote", "settings": {"addresses": ["a:1", "b:2"]}},
    {"type": "ue4", "discretize_actions": True, "num_ticks": 2},
    {"type": "tensorforce.contrib.unreal_engine.UE4Environment", "host": "localhost", "port": 6025},
    {"id": "CartPole-v1", "wrappers": ["a.B", {"type": "c:D", "scale": 2}], "settings": {"any": "thing"}},
]
EXPERIMENTS: list[Any] = [
    {"environment": "CartPole-v1"},
    {"environment": "cartpole", "agent": "ppo", "network": "mlp_64_tanh", "cluster": "single_node"},
    {"environment": "cartpole", "agent": None, "network": None, "$schema": "experiment.schema.json"},
    {"type": "experiment", "environment": {"gym_id": "CartPole-v0"}, "timesteps": 1e6, "num_parameter_servers": 0},
    {"environment": "cartpole", "network": {"layers": [{"type": "flatten"}]}, "max_episode_timesteps": 100},
    {"environment": "cartpole", "saver_frequency": 600, "summary_frequency": "2e3t", "evaluation": {"every": 1e4}},
]
TWO = ["a", "b"]
NESTED = [
    "a",
    {"kind": "abtest", "branches": ["b", {"policy": "c", "version": None}], "weights": [0, 3]},
    {"kind": "shadow", "live": {"kind": "router", "branches": ["d", "e"]}, "shadows": ["f", {"policy": "g"}]},
]
GRAPHS: list[Any] = [
    "first",
    "../runs/a b/policy",
    "a...b",
    {"policy": "first"},
    {"$schema": "graph.schema.json", "policy": "first", "name": "mine_1.0-a", "version": "7-abc"},
    {"kind": "model", "policy": "first", "deterministic": False},
    {"$schema": "graph.schema.json", "kind": "router", "branches": TWO},
    {"kind": "router", "name": "n", "branches": NESTED, "bandit": "thompson"},
    {"kind": "abtest", "branches": TWO, "weights": None},
    {"kind": "abtest", "branches": TWO, "weights": [1, 0.5]},
    *({"kind": "router", "branches": TWO, "bandit": word} for word in ("ucb1", "UCB1", "epsilon-greedy", "Thompson")),
    {"kind": "router", "branches": TWO, "bandit": {"type": "Epsilon-Greedy", "epsilon": 0, "patience": 1e2}},
    {"kind": "router", "branches": TWO, "bandit": {"type": "ucb1", "reward_range": None, "floor": 0.5}},
    {"kind": "shadow", "live": "a", "shadows": ["b"]},
]
WRITTEN = {
    "agent": AGENTS,
    "network": NETWORKS,
    "environment": ENVIRONMENTS,
    "experiment": EXPERIMENTS,
    "graph": GRAPHS,
}

REFUSED: list[tuple[str, Any]] = [
    ("agent", "pppo"),
    ("agent", {"type": "ppo", "discout": 1}),
    ("agent", {"type": "ppo", "discount": 1.5}),
    ("agent", {"type": "dqn", "optimizer": "adamm"}),
    ("agent", {"type": "dqn", "optimizer": "clipped_step"}),
    ("agent", {"type": "dqn", "optimizer": {"type": "adam", "learning_rates": 1}}),
    ("agent", {"type": "dqn", "exploration": {"type": "constant", "epsilon": 2}}),
    ("agent", {"type": "dqn", "memory": "latest"}),
    ("agent", {"type": "dqn", "update_mode": {"units": "timesteps"}}),
    ("agent", {"type": "ppo", "memory": "replay"}),
    ("agent", {"type": "ppo", "states_preprocessing": "divide"}),
    ("agent", {"type": "ppo", "states_preprocessing": {"other": ["grayscale"]}}),
    ("agent", {"type": "ppo", "baseline_mode": "state"}),
    ("agent", {"type": "ppo", "baseline": "mlp"}),
    ("agent", {"type": "ppo", "baseline": {"a": {"type": "mlp", "sizes": [8]}, "b": {"type": "mlp", "sizes": [8]}}}),
    ("agent", {"type": "ppo", "execution": "distributed"}),
    ("agent", {"type": "ppo", "network": [{"type": "flatten"}]}),
    ("agent", {"type": "dqn", "variable_noise": 0.1}),
    ("agent", {"type": "dqn", "memory": {"type": "replay", "random_sampling": False}}),
    ("agent", {"type": "dqn", "exploration": {"final_epsilonn": 0.1}}),
    ("agent", {"type": "ppo", "optimizer": {"type": "multi_step", "unroll_loop": True, "optimizer": "adam"}}),
    ("agent", {"type": "ppo", "optimizer": {"type": "evolutionary", "unroll_loop": True}}),
    ("agent", {"type": "dqfd"}),
    ("network", []),
    ("network", [{"type": "dense", "size": 8, "activation": "rely"}]),
    ("network", [{"type": "conv2d", "size": 8, "window": [3, 3, 3]}]),
    ("network", {"layer": [{"type": "flatten"}]}),
    ("environment", {}),
    ("environment", {"id": "CartPole-v1", "wrapper": []}),
    ("environment", {"id": "CartPole-v1", "wrappers": [{"scale": 2}]}),
    ("environment", {"type": "tensorforce.contrib.deepmind_lab.DeepMindLab", "level": "x"}),
    ("environment", {"type": "openai_gym"}),
    ("environment", {"type": "ale", "room": "x"}),
    ("environment", {"type": "remote", "adress": "h:1"}),
    ("experiment", {"agent": "ppo"}),
    ("experiment", {"environment": "cartpole", "epochs": 3}),
    ("experiment", {"environment": "cartpole", "run_mode": "singel"}),
    ("experiment", {"environment": "cartpole", "saver_frequency": "often"}),
    ("cluster", {"nodes": 3}),
    ("graph", ""),
    ("graph", ["a", "b"]),
    ("graph", None),
    ("graph", {}),
    ("graph", {"branches": TWO}),
    ("graph", {"kind": None, "policy": "a"}),
    ("graph", {"kind": "Model", "policy": "a"}),
    ("graph", {"kind": "model"}),
    ("graph", {"policy": ""}),
    ("graph", {"policy": "a", "branches": TWO}),
    ("graph", {"policy": "a", "deterministic": "yes"}),
    *(("graph", {"policy": "a", "name": name}) for name in ("", "-a", "a/b", "a..b", "a" * 101, None)),
    ("graph", {"kind": "rooter", "branches": TWO}),
    ("graph", {"kind": "router", "branches": ["a"]}),
    ("graph", {"kind": "router", "branches": ["a", {"$schema": "graph.schema.json", "policy": "b"}]}),
    ("graph", {"kind": "router", "branches": ["a", {"branches": ["b", "c"]}]}),
    ("graph", {"kind": "router", "branches": TWO, "weights": [1, 1]}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": None}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": "ucb2"}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": "epsilon greedy"}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": {"epsilon": 0.1}}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": {"type": "thompson", "epsilon": 0.1}}),
    ("graph", {"kind": "router", "branches": TWO, "bandit": {"type": "ucb1", "reward_range": 0}}),
    ("graph", {"kind": "abtest", "branches": TWO, "weights": [1]}),
    ("graph", {"kind": "abtest", "branches": TWO, "weights": [0, 0]}),
    ("graph", {"kind": "abtest", "branches": TWO, "weights": [-1, 2]}),
    ("graph", {"kind": "shadow", "live": "a", "shadows": []}),
    ("graph", {"kind": "shadow", "live": "a", "shadows": [{"kind": "router", "branches": TWO}]}),
]


@pytest.mark.parametrize(("kind", "data"), [*templates(), *examples()])
def test_what_steppe_ships_and_documents_is_taken_by_both(kind: str, data: Any, project: Path) -> None:
    assert mistakes(kind, data) == []
    load(kind, data, project)


@pytest.mark.parametrize(("kind", "data"), [(kind, data) for kind, each in WRITTEN.items() for data in each], ids=str)
def test_short_and_old_forms_are_taken_by_both(kind: str, data: Any, project: Path) -> None:
    load(kind, data, project)
    assert mistakes(kind, data) == []


@pytest.mark.parametrize(("kind", "data"), REFUSED, ids=str)
def test_mistakes_are_refused_by_both(kind: str, data: Any, project: Path) -> None:
    with pytest.raises(SteppeError):
        load(kind, data, project)
    assert mistakes(kind, data)


@pytest.mark.parametrize("kind", ["agent", "network", "environment"])
def test_an_experiment_takes_each_of_them_in_its_place(kind: str) -> None:
    for data in WRITTEN[kind]:
        inline = {name: value for name, value in data.items() if name != "$schema"} if isinstance(data, dict) else data
        assert mistakes("experiment", {"environment": "CartPole-v1", kind: inline}) == [], data


@pytest.mark.parametrize("name", agents.names())
def test_every_default_of_an_agent_is_taken_when_written_out(name: str) -> None:
    fields = agents.settings_class(name).model_fields
    required = {each: "x" for each, field in fields.items() if field.is_required()}
    written = agents.settings_class(name).model_validate(required).model_dump(mode="json", exclude_unset=False)
    assert mistakes("agent", {"type": name, **written}) == []


def test_every_kind_has_templates_and_every_template_a_kind() -> None:
    assert {parameter.values[0] for parameter in templates()} == set(KINDS)
