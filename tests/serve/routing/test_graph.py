"""Paths through a graph."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from steppe.serve.routing.bandits import Arm
from steppe.serve.routing.graph import build
from steppe.specs.serving import GraphSpec

NESTED = {
    "kind": "router",
    "name": "top",
    "bandit": {"type": "epsilon_greedy", "epsilon": 0.4},
    "branches": [
        "a",
        {"kind": "abtest", "name": "half", "weights": [1, 3], "branches": ["b", "c"]},
        {"kind": "shadow", "name": "compared", "live": "d", "shadows": ["e", "f"]},
    ],
}


def graph_of(data):
    return build(GraphSpec.model_validate(data), lambda spec: None)


def learned(mean, count=5):
    return Arm(count, count, count, mean, 0.0, mean, mean)


def test_a_removed_branch_has_no_index():
    graph = build(GraphSpec.model_validate(NESTED), lambda spec: None)
    names = [branch.name for branch in graph.root.branches]
    assert graph.indexed((("top", names[1]), ("top", "gone"), ("no", "a"))) == (("top", 1), ("top", -1), ("no", -1))


def test_propensities_match_the_frequencies_of_paths():
    graph = graph_of(NESTED)
    graph.learn({("top", "a"): learned(1.0), ("top", "half"): learned(3.0), ("top", "compared"): learned(2.0)})
    draw = random.Random(3).random
    counts, propensities = Counter(), {}
    for _ in range(20_000):
        path, propensity = graph.choose(graph.root, draw)
        counts[path.leaf.name] += 1
        assert propensities.setdefault(path.leaf.name, propensity) == propensity
    assert sum(propensities.values()) == pytest.approx(1.0)
    half = 0.6 + 0.4 / 3
    assert propensities == pytest.approx({"a": 0.4 / 3, "b": half / 4, "c": half * 3 / 4, "d": 0.4 / 3})
    names = sorted(propensities)
    expected = [20_000 * propensities[name] for name in names]
    assert chisquare([counts[name] for name in names], expected).pvalue > 1e-4


def test_a_path_names_every_choice_from_the_root_down():
    graph = graph_of(NESTED)
    path = graph.find("c", (("top", "half"), ("half", "c"), ("c", "")))
    assert path.route == (("top", 1), ("half", 1))
    assert path.is_routed
    shadowed = graph.find("d", (("top", "compared"), ("d", "")))
    assert shadowed.route == (("top", 2),)
    assert [(step, leaf.name) for step, leaf in shadowed.shadows] == [
        (("compared", "e"), "e"),
        (("compared", "f"), "f"),
    ]


def test_a_node_of_a_graph_can_be_asked_by_itself():
    graph = graph_of(NESTED)
    path, propensity = graph.choose(graph.nodes["half"], lambda: 0.9)
    assert (path.route, path.is_routed, propensity) == ((("half", 1),), False, 0.75)
    path, propensity = graph.choose(graph.nodes["c"], lambda: 0.9)
    assert (path.route, path.steps, propensity) == ((), (("c", ""),), 1.0)


def test_a_path_that_no_longer_exists_is_not_found():
    graph = graph_of(NESTED)
    assert graph.find("c", (("top", "c"), ("c", ""))) is None
    assert graph.find("gone", (("top", "gone"), ("gone", ""))) is None


def test_branches_of_weight_zero_are_never_chosen_and_every_number_has_a_branch():
    graph = graph_of({"kind": "abtest", "branches": ["a", "b", "c"], "weights": [0, 1, 0]})
    for number in (0.0, 0.5, float(np.nextafter(1.0, 0.0))):
        assert graph.choose(graph.root, lambda n=number: n)[0].leaf.name == "b"
    thirds = graph_of({"kind": "abtest", "branches": ["a", "b", "c"]})
    assert thirds.choose(thirds.root, lambda: float(np.nextafter(1.0, 0.0)))[0].leaf.name == "c"


def test_an_ab_test_keeps_its_weights():
    graph = graph_of({"kind": "abtest", "branches": ["a", "b"], "weights": [1, 4]})
    graph.learn({("abtest", "a"): learned(100.0), ("abtest", "b"): learned(1.0)})
    assert graph.root.probabilities == [0.2, 0.8]
    assert graph.root.best() == 0
