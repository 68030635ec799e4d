"""Endpoints made from files, folders and experiments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_graphs import save_constant

from steppe.errors import StateError, UserError
from steppe.experiments.project import init_project, templates
from steppe.serve import load_endpoint
from steppe.serve.loading import serving_folder
from steppe.specs.serving import load_graph
from steppe.specs.spaces import Box


@pytest.fixture
def project(tmp_path):
    (tmp_path / "steppe.json").write_text('{"name": "demo"}')
    return tmp_path


def make_experiment(project, name, action=None):
    folder = project / "experiments" / name
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text("{}")
    if action is not None:
        save_constant(folder / "policy", action)
    return folder


def test_an_experiment_is_served_by_its_name_or_its_folder(project):
    folder = make_experiment(project, "cartpole", 3)
    for graph in ("cartpole", folder, folder / "policy", folder / "policy" / "policy.json"):
        endpoint = load_endpoint(graph, start=project)
        assert endpoint.name == "cartpole" or str(graph).endswith("policy.json")
        assert len(endpoint.graph.leaves) == 1


def test_the_state_of_an_endpoint_is_kept_in_the_project(project):
    make_experiment(project, "cartpole", 3)
    (project / "deep").mkdir()
    load_endpoint("cartpole", start=project / "deep")
    assert serving_folder("cartpole", project / "deep") == project / "serving" / "cartpole"
    assert len(list((project / "serving" / "cartpole" / "policies" / "cartpole").iterdir())) == 1


def test_policies_in_a_graph_file_are_found_beside_it_and_by_name(project):
    make_experiment(project, "trained", 1)
    (project / "graphs").mkdir()
    save_constant(project / "graphs" / "local", 2)
    graph = {"kind": "router", "branches": ["trained", "local", {"policy": "../experiments/trained", "name": "again"}]}
    (project / "graphs" / "mine.json").write_text(json.dumps(graph))
    endpoint = load_endpoint(project / "graphs" / "mine.json", start=project)
    assert endpoint.name == "mine"
    assert [leaf.name for leaf in endpoint.graph.leaves] == ["trained", "local", "again"]
    assert load_endpoint("graphs/mine.json", start=project, name="other").models()[0] == "other"


def test_a_seldon_deployment_is_served_under_its_own_name(project):
    make_experiment(project, "first", 1)
    make_experiment(project, "second", 2)
    children = [{"name": name, "type": "MODEL", "children": []} for name in ("first", "second")]
    graph = {"name": "eg", "implementation": "EPSILON_GREEDY", "children": children}
    deployed = {"kind": "SeldonDeployment", "metadata": {"name": "poles"}, "spec": {"predictors": [{"graph": graph}]}}
    (project / "deployed.json").write_text(json.dumps(deployed))
    endpoint = load_endpoint("deployed.json", start=project)
    assert endpoint.models() == ("poles", "eg", "first", "second")
    assert (project / "serving" / "poles").is_dir()
    assert load_endpoint("deployed.json", start=project, name="other").name == "other"


@pytest.mark.parametrize("graph", [path.stem for path, _ in templates() if path.parts[0] == "graphs"])
def test_every_shipped_graph_serves_the_shipped_experiments(tmp_path, graph):
    init_project(tmp_path)
    names = [path.stem for path, _ in templates() if path.parts[0] == "experiments"]
    for name in names:
        make_experiment(tmp_path, name, 1)
    spec, file = load_graph(graph, tmp_path)
    assert load_endpoint(file, start=tmp_path).name == graph
    policies = {node.policy for node in spec.nodes() if node.kind == "model"}
    assert policies <= {name for name in names if name.startswith("cartpole")}


def test_an_experiment_without_a_policy_says_so(project):
    make_experiment(project, "young")
    with pytest.raises(UserError, match='experiment "young" has not saved a policy yet'):
        load_endpoint("young", start=project)


def test_an_unknown_name_is_a_helpful_error(project):
    make_experiment(project, "cartpole", 1)
    with pytest.raises(StateError, match='did you mean "cartpole"'):
        load_endpoint("cartpol", start=project)


@pytest.mark.parametrize("name", ["../../evil", "..", "/tmp/evil", "a/b", ".hidden", "-n", "a" * 101, "a\nb", "a..b"])
def test_a_name_that_leaves_the_serving_folder_is_refused(project, name):
    make_experiment(project, "cartpole", 3)
    outside = {place for place in (project.parent / "evil", Path("/tmp/evil")) if place.exists()}
    before = sorted(project.rglob("*"))
    for make in (
        lambda: load_endpoint("cartpole", start=project, name=name),
        lambda: load_endpoint("cartpole", start=project, name=name, folder=project / "own"),
        lambda: serving_folder(name, project),
    ):
        with pytest.raises(UserError, match="cannot be the name of an endpoint: a name is made of letters, digits"):
            make()
    # The other folders beside the project belong to other tests, which may still write into them.
    assert sorted(project.rglob("*")) == before
    assert {place for place in (project.parent / "evil", Path("/tmp/evil")) if place.exists()} == outside


def test_a_refused_graph_leaves_no_folder(project):
    make_experiment(project, "first", 3)
    save_constant(project / "other", 3, observation=Box((7,)))
    (project / "bad.json").write_text(json.dumps({"kind": "router", "branches": ["first", "other"]}))
    before = sorted(project.rglob("*"))
    with pytest.raises(UserError, match="observation"):
        load_endpoint("bad.json", start=project)
    assert sorted(project.rglob("*")) == before


def test_a_refused_graph_keeps_the_files_of_an_endpoint_of_that_name(project):
    make_experiment(project, "first", 3)
    save_constant(project / "other", 3, observation=Box((7,)))
    (project / "both.json").write_text(json.dumps({"kind": "model", "policy": "first"}))
    load_endpoint("both.json", start=project)
    before = sorted(project.rglob("*"))
    (project / "both.json").write_text(json.dumps({"kind": "router", "branches": ["first", "other"]}))
    save_constant(project / "experiments" / "first" / "policy", 4, timestep=9)
    with pytest.raises(UserError, match="observation"):
        load_endpoint("both.json", start=project)
    assert sorted(project.rglob("*")) == before
