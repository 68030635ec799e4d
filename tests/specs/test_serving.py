"""Specs of graphs to serve."""

from __future__ import annotations

import pytest

from steppe.errors import SpecError
from steppe.specs.loading.validation import validate
from steppe.specs.serving import GraphSpec, load_graph


def graph(data):
    return validate(GraphSpec, data, source="graph.json")


def test_a_bare_name_is_a_policy():
    spec = graph("runs/cartpole")
    assert (spec.root.kind, spec.root.policy, spec.name) == ("model", "runs/cartpole", "cartpole")
    assert spec.root.deterministic
    assert spec.root.version is None


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("a/policy", "a"),
        ("a/policy/best", "best"),
        ("../x y", "x-y"),
        ("/", "policy"),
        ("..", "policy"),
        (".a", "a"),
        ("a...b", "a.b"),
    ],
)
def test_a_policy_is_called_like_its_folder(policy, name):
    assert graph(policy).name == name


def test_graphs_nest_and_keep_their_order():
    spec = graph(
        {
            "kind": "router",
            "bandit": "epsilon-greedy",
            "branches": [
                "a",
                {"kind": "abtest", "weights": [1, 3], "branches": ["b", "c"]},
                {"kind": "shadow", "live": "d", "shadows": ["e"]},
            ],
        }
    )
    assert [node.name for node in spec.nodes()] == ["router", "a", "abtest", "b", "c", "shadow", "d", "e"]
    assert spec.root.bandit.epsilon == 0.1
    assert spec.root.branches[1].weights == (1, 3)


def test_a_bandit_takes_its_settings():
    spec = graph({"kind": "router", "bandit": {"type": "ucb1", "exploration": 0.5}, "branches": ["a", "b"]})
    assert (spec.root.bandit.type, spec.root.bandit.exploration, spec.root.bandit.floor) == ("ucb1", 0.5, 0.01)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"kind": "rooter"}, 'unknown value "rooter" in graph.json at kind; did you mean "router"?'),
        ({"kind": "router", "bandit": "ucb2", "branches": ["a", "b"]}, 'did you mean "ucb1"?'),
        ({"kind": "router", "branches": ["a"]}, "at branches; it must have at least 2 items"),
        ({"kind": "router", "branches": ["a", "a"]}, 'two nodes are called "a"'),
        ({"kind": "abtest", "branches": ["a", "b"], "weights": [1]}, "2 branches need as many weights, not 1"),
        ({"kind": "abtest", "branches": ["a", "b"], "weights": [0, 0]}, "at least one weight must be more than 0"),
        ({"kind": "abtest", "branches": ["a", "b"], "weights": [-1, 2]}, "it must be at least 0"),
        ({"kind": "router", "bandit": {"type": "thompson", "floor": 0.6}, "branches": ["a", "b"]}, "at least 0.6"),
        ({"kind": "abtest", "branches": ["a", {"kind": "abtest", "branches": ["b", "c"], "weigths": [1]}]}, "weights"),
        ({"kind": "model", "policy": "a", "name": "a/b"}, "a name is made of letters"),
        ({"kind": "shadow", "live": "a", "shadows": [{"kind": "router"}]}, "at shadows[0].kind"),
        ({"branches": []}, 'missing field "kind"'),
        ([1], "it must be an object"),
    ],
)
def test_mistakes_are_named_with_their_place(data, sentence):
    with pytest.raises(SpecError) as error:
        graph(data)
    assert sentence in str(error.value)
    assert "graph.json" in str(error.value)


def test_a_graph_is_found_by_name_and_called_like_its_file(project):
    project.write("configs/graphs/two.json", {"kind": "abtest", "branches": ["a", "b"]})
    spec, path = load_graph("two", project.root)
    assert spec.name == "two"
    assert path == project.root / "configs/graphs/two.json"


def test_a_name_in_the_file_wins(project):
    project.write("two.yaml", "{kind: abtest, name: mine, branches: [a, b]}")
    assert load_graph("two.yaml", project.root)[0].name == "mine"
