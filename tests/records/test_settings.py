"""The settings that are shown for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steppe.records.settings import groups_of, knows_defaults
from steppe.spec_files import load_experiment


def noted(**fields: Any) -> dict[str, Any]:
    """An experiment.json as a run leaves it."""
    experiment = {
        "name": "first",
        "environment": {"id": "CartPole-v1", "settings": {}},
        "agent": {"type": "ppo", "learning_rate": 0.001},
        "network": None,
        "cluster": None,
        "run_mode": "single",
        "platform": "local",
        "num_workers": 3,
        "num_parameter_servers": 1,
        "total_timesteps": None,
        "asynchronous": {"patience": 10.0, "address": None},
        "distributed": {"overlap": False},
        "ray": {"cpus_per_worker": 1.0, "address": None},
        "kubernetes": {"image": None, "driver": {"cpus": None}},
        "seed": 7,
        "schema_version": 1,
    }
    effective = {
        "agent": {"type": "ppo", "learning_rate": 0.001, "clip": 0.2, "baseline": None, "final_learning_rate": 0.0},
        "network": {"layers": [{"type": "dense", "size": 64, "bias": True, "skip": False}], "parameters": 9155},
        "environment": {"id": "CartPole-v1", "settings": {}, "num_envs": 8, "action": {"type": "discrete", "n": 2}},
        "limits": {"total_timesteps": 1_000_000},
        "given": ["agent.type", "agent.learning_rate", "environment.id", "seed"],
        "without_effect": ["agent.final_learning_rate"],
    }
    return {**experiment, "effective": effective, **fields}


def shown(experiment: dict[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
    return {
        group.name: {each.name: each.value for each in group.settings} for group in groups_of(experiment, **options)
    }


def test_the_settings_of_agent_network_and_environment_come_first_with_their_defaults() -> None:
    groups = shown(noted())
    assert list(groups) == ["agent", "network", "environment", "experiment"]
    assert groups["agent"] == {"type": "ppo", "learning_rate": 0.001, "clip": 0.2}
    assert groups["network"] == {"layer 1": {"type": "dense", "size": 64}, "parameters": 9155}
    assert groups["environment"] == {"id": "CartPole-v1", "num_envs": 8, "action": {"type": "discrete", "n": 2}}
    assert groups["experiment"] == {"run_mode": "single", "platform": "local", "total_timesteps": 1_000_000, "seed": 7}


def test_given_settings_are_distinguished_from_defaults() -> None:
    given = {f"{group.name}.{each.name}" for group in groups_of(noted()) for each in group.settings if each.is_given}
    assert given == {"agent.type", "agent.learning_rate", "environment.id", "experiment.seed"}


@pytest.mark.parametrize(
    ("fields", "sections", "names"),
    [
        ({"run_mode": "single"}, set(), set()),
        ({"run_mode": "async"}, {"asynchronous", "ray"}, {"num_workers"}),
        ({"run_mode": "distributed"}, {"distributed", "ray"}, {"num_workers", "num_parameter_servers"}),
        ({"run_mode": "multi-threaded"}, set(), {"num_workers"}),
    ],
)
def test_only_settings_with_an_effect_in_the_run_mode_are_shown(
    fields: dict[str, Any], sections: set[str], names: set[str]
) -> None:
    groups = shown(noted(**fields))
    assert set(groups) - {"agent", "network", "environment", "experiment"} == sections
    assert {"num_workers", "num_parameter_servers"} & set(groups["experiment"]) == names


def test_pods_are_only_for_kubernetes_unless_they_were_given() -> None:
    pods = {"image": "a:1", "driver": {"cpus": None}}
    assert "kubernetes" not in shown(noted(kubernetes=pods))
    assert shown(noted(kubernetes=pods, platform="kubernetes"))["kubernetes"] == {"image": "a:1"}
    experiment = noted(kubernetes=pods)
    experiment["effective"]["given"].append("kubernetes.image")
    assert shown(experiment)["kubernetes"] == {"image": "a:1"}


def test_everything_is_shown_if_it_is_asked_for() -> None:
    groups = shown(noted(), everything=True)
    assert groups["agent"]["baseline"] is None
    assert groups["agent"]["final_learning_rate"] == 0.0
    assert groups["kubernetes"] == {"image": None, "driver.cpus": None}
    assert groups["asynchronous"] == {"patience": 10.0, "address": None}
    assert groups["experiment"]["num_workers"] == 3


def test_a_run_without_effective_settings_shows_the_written_ones() -> None:
    old = noted()
    del old["effective"]
    groups = shown(old, policy={"network": [{"type": "dense", "size": 32}]})
    assert (knows_defaults(noted()), knows_defaults(old)) == (True, False)
    assert groups["agent"] == {"type": "ppo", "learning_rate": 0.001}
    assert groups["network"] == {"layer 1": {"type": "dense", "size": 32}}
    assert groups["environment"] == {"id": "CartPole-v1"}
    assert set(groups) == {"agent", "network", "environment", "experiment"}


@pytest.mark.parametrize("effective", [7, [], "x", {"agent": 3, "network": [], "given": 1, "limits": "y"}])
def test_a_damaged_section_does_no_harm(effective: Any) -> None:
    assert shown(noted(effective=effective))["agent"]["type"] == "ppo"


def test_a_file_with_the_section_is_read_as_if_it_had_none(tmp_path: Path) -> None:
    for name, section in (("a", {}), ("b", {"effective": {"agent": {"clip": 0.9}}})):
        data = {"name": "x", "environment": "CartPole-v1", "agent": "ppo"} | section
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    one, other = (load_experiment(tmp_path / f"{name}.json", {}, [], tmp_path) for name in "ab")
    assert one == other
    assert "effective" not in other.model_dump()
