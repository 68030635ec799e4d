from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe import agents, runners
from steppe.envs.registry import catalogue
from steppe.errors import ProjectError, SpecError, StateError
from steppe.experiments.project import find_experiment, init_project, open_project, templates
from steppe.experiments.run_folder.store import Store
from steppe.policies.policy import load_policy
from steppe.runners.setup import make_engine
from steppe.spec_files import load_experiment, read_environment
from steppe.specs.describing.field_rows import members
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import Layer, NetworkSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.connections import CONNECTIONS
from steppe.specs.serving import GraphSpec
from steppe.tracking.metrics import read_metrics

TEMPLATES = dict(templates())
PACKAGES = {
    "ALE/": "ale_py",
    "HalfCheetah": "mujoco",
    "Hopper": "mujoco",
    "MiniGrid": "minigrid",
    "LunarLander": "Box2D",
    "BipedalWalker": "Box2D",
}
"""Prefix of an environment's id -> the package that it needs."""


def test_init_writes_every_kind_of_config(tmp_path: Path) -> None:
    init_project(tmp_path, name="demo", remote_id="cloud-7")
    about = json.loads((tmp_path / "steppe.json").read_text())
    assert (about["name"], about["remote_id"]) == ("demo", "cloud-7")
    kinds = {path.name: {file.stem for file in path.iterdir()} for path in (tmp_path / "configs").iterdir()}
    assert kinds["agents"] == {*agents.names(), "rainbow"}
    assert kinds["experiments"] == {
        *("cartpole_ppo", "cartpole_dqn", "cartpole_recurrent_ppo", "pendulum_ppo", "pendulum_sac"),
        *("pong_dqn", "pong_ppo", "breakout_dqn", "breakout_ppo", "space_invaders_dqn", "lunar_lander_ppo"),
        *("half_cheetah_ppo", "half_cheetah_sac", "hopper_ppo", "hopper_sac", "minigrid_doorkey_ppo"),
        "bipedal_walker_ppo",
    }
    assert kinds["clusters"] == {
        *("small_cluster", "large_cluster", "single_node", "single_node_gpu", "single_node_2xgpu"),
    }
    assert kinds["graphs"] == {"cartpole", "cartpole_abtest", "cartpole_router", "cartpole_shadow"}


def shipped(kind: str) -> dict[str, Any]:
    """The configs of one kind, by their names."""
    return {path.stem: json.loads(text) for path, text in TEMPLATES.items() if path.parts[0] == kind}


def test_there_is_a_config_of_every_environment_that_the_catalogue_names() -> None:
    ids = {EnvironmentSpec.model_validate(data).id for data in shipped("environments").values()}
    assert {entry.id for entry in catalogue()} <= ids


def test_there_is_a_config_with_every_layer_that_the_catalogue_names() -> None:
    used = {layer.type for data in shipped("networks").values() for layer in NetworkSpec.model_validate(data).root}
    # The first is another name of lstm, the second a module of the user's.
    assert set(members(Layer)) - {"internal_lstm", "custom"} == used


VECTORS, CHOICES, PICTURES = "CartPole-v1", "FrozenLake-v1", "worlds:Pictures"
ROWS = {"type": "ppo", "states_preprocessing": [{"type": "sequence", "length": 4}]}
SUITED: dict[str, tuple[Any, Any]] = {
    "conv1d_32": (VECTORS, ROWS),
    "dueling_128": (VECTORS, "dqn"),
    "frozen_lake_embedding": (CHOICES, "ppo"),
    "minigrid_branches": ("minigrid_empty_parts", "ppo"),
    "nature_cnn": ("breakout", "ppo"),
    "pooled_cnn": (PICTURES, "ppo"),
    "space_invaders": ("breakout", "dqn"),
}
"""Networks that are made for other inputs than four numbers, or for other agents."""


@pytest.mark.parametrize("name", shipped("networks"))
def test_every_shipped_network_fits_what_it_is_made_for(name: str, tmp_path: Path) -> None:
    init_project(tmp_path)
    environment, agent = SUITED.get(name, (VECTORS, "ppo"))
    fields = {"name": "a", "environment": environment, "agent": agent, "network": name, "num_envs": 8}
    spec = load_experiment(None, fields, [], tmp_path)
    skip_without_its_package(spec.environment.id)
    engine = make_engine(spec, shards=1)
    assert spec.network is not None
    engine.close()


def test_rainbow_is_named_by_its_file(tmp_path: Path) -> None:
    init_project(tmp_path)
    spec = load_experiment(None, {"name": "a", "environment": "CartPole-v1", "agent": "rainbow"}, [], tmp_path)
    settings = spec.agent.settings_as(agents.settings_class(spec.agent.type))
    assert spec.agent.type == "dqn"
    assert (settings.double, settings.dueling, settings.noisy) == (True, True, True)
    assert min(settings.n_step, settings.quantiles) > 1
    assert settings.memory.type == "prioritized_replay"


def test_init_refuses_to_overwrite_and_writes_nothing_then(tmp_path: Path) -> None:
    mine = tmp_path / "configs" / "agents" / "ppo.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ProjectError, match=r"configs/agents/ppo\.json exists already.*--force"):
        init_project(tmp_path)
    assert not (tmp_path / "steppe.json").exists()
    init_project(tmp_path, force=True)
    assert mine.read_text() != "mine"


def skip_without_its_package(environment: str) -> None:
    needed = next((module for start, module in PACKAGES.items() if environment.startswith(start)), None)
    if needed is not None:
        pytest.importorskip(needed)


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.parts[0] == "experiments"], ids=str)
def test_every_shipped_experiment_loads_by_its_name_and_fits_together(path: Path, tmp_path: Path) -> None:
    init_project(tmp_path)
    spec = load_experiment(path.stem, {}, [], tmp_path)
    assert (spec.name, spec.seed) == (path.stem, 1)
    skip_without_its_package(spec.environment.id)
    engine = make_engine(spec, shards=1)
    assert engine.agent.type == spec.agent.type
    engine.close()


PRESETS = [name for name, data in shipped("experiments").items() if data.get("description")]
"""The experiments for harder environments, whose descriptions give the expected score."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_without_a_project_and_means_the_same_in_one(name: str, tmp_path: Path) -> None:
    alone, project = tmp_path / "alone", tmp_path / "project"
    alone.mkdir()
    project.mkdir()
    init_project(project)
    spec = load_experiment(name, {}, [], alone)
    assert spec == load_experiment(name, {}, [], project)
    assert re.match(r"Expected score: -?[\d,.]+ after \d+[kM] timesteps \((published|measured): ", spec.description)
    assert "Expected time: " in spec.description


def test_there_is_a_preset_for_each_of_the_games_and_robots_that_people_begin_with() -> None:
    ids = {load_experiment(name, {}, [], Path("/")).environment.id.partition("-v")[0] for name in PRESETS}
    games = {"ALE/Pong", "ALE/Breakout", "LunarLander", "MiniGrid-DoorKey-5x5"}
    assert games | {"HalfCheetah", "Hopper", "BipedalWalker"} <= ids


def test_a_file_of_the_users_own_comes_before_a_preset_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "pong_dqn.json").write_text('{"environment": "CartPole-v1", "agent": "dqn"}')
    assert load_experiment("pong_dqn", {}, [], tmp_path).environment.id == "CartPole-v1"


def test_a_misspelt_preset_gets_the_hint(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r'no experiment "pong_dqm".*; did you mean "pong_dqn"\?'):
        load_experiment("pong_dqm", {}, [], tmp_path)


def test_the_example_of_the_old_manual_learns_from_frames_of_the_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    init_project(tmp_path)
    sooner = ["agent.memory.capacity=256", "agent.update_mode.first_update=64", "total_timesteps=84"]
    spec = load_experiment("space_invaders_dqn", {}, [*sooner, "video=false"], tmp_path)
    assert any("ALE/SpaceInvaders-v5" in notice for notice in spec.notices)
    folder = tmp_path / "run"
    folder.mkdir()
    outcome = runners.run(spec, folder, resume=False, request=lambda: None, on_progress=lambda progress: None)
    # One update at 64 timesteps, then one every 4.
    assert (outcome.state, outcome.timestep, outcome.update) == ("completed", 84, 6)
    assert read_metrics(folder)[-1]["loss"] > 0
    policy = load_policy(folder / "policy")
    frame = np.random.default_rng(0).integers(256, size=(210, 160, 3), dtype=np.uint8)
    assert policy.act(frame) in range(6)


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.parts[0] == "environments"], ids=str)
def test_every_shipped_environment_can_be_made(path: Path) -> None:
    environment = read_environment(json.loads(TEMPLATES[path]))
    if environment.id in CONNECTIONS:
        pytest.skip("it needs a server")
    skip_without_its_package(environment.id)
    spec = ExperimentSpec(name="x", environment=environment, agent=AgentSpec(type="random"), num_envs=1)
    engine = make_engine(spec, shards=1)
    assert engine.timesteps_per_iteration >= 1
    engine.close()


@pytest.mark.parametrize(
    "path", [path for path in TEMPLATES if path.parts[0] == "agents" and path.stem != "rainbow"], ids=str
)
def test_every_shipped_agent_shows_the_real_defaults(path: Path) -> None:
    written = json.loads(TEMPLATES[path])
    settings = agents.settings_class(written.pop("type"))
    required = {name: written[name] for name, field in settings.model_fields.items() if field.is_required()}
    assert settings.model_validate(written) == settings(**required)


@pytest.mark.parametrize(
    "path", [path for path in TEMPLATES if path.parts[0] not in ("experiments", "agents")], ids=str
)
def test_every_other_shipped_config_is_valid(path: Path) -> None:
    kinds = {"networks": NetworkSpec, "environments": EnvironmentSpec, "clusters": ClusterSpec, "graphs": GraphSpec}
    kind = kinds[path.parts[0]]
    assert isinstance(kind.model_validate(json.loads(TEMPLATES[path])), kind)


@pytest.fixture
def project(tmp_path: Path, spec: ExperimentSpec) -> Path:
    init_project(tmp_path)
    open_project(tmp_path).store.folder("first").create(spec)
    return tmp_path


def test_an_experiment_is_found_from_any_folder_below(project: Path) -> None:
    below = project / "configs" / "agents"
    assert find_experiment("first", below).path == project / "experiments" / "first"


def test_an_experiment_is_found_by_its_path(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_experiment(str(project / "experiments" / "first"), elsewhere).name == "first"
    assert find_experiment(".", project / "experiments" / "first").name == "first"


def test_a_misspelt_experiment_gets_the_nearest_name(project: Path) -> None:
    with pytest.raises(StateError, match=r'no experiment "frist".*did you mean "first"'):
        find_experiment("frist", project)


def test_outside_a_project_the_way_in_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="steppe init"):
        open_project(tmp_path)
    with pytest.raises(ProjectError, match="steppe init"):
        find_experiment("first", tmp_path)


def test_loose_runs_are_found_by_name(tmp_path: Path, spec: ExperimentSpec) -> None:
    Store(tmp_path / "steppe-runs").folder("loose").create(spec)
    assert find_experiment("loose", tmp_path).path == tmp_path / "steppe-runs" / "loose"
