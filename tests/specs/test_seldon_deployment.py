"""SeldonDeployment files are read as graphs."""

from __future__ import annotations

import pytest

from steppe.errors import SpecError
from steppe.specs.serving import load_graph

ABTEST = """
apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata: {name: cartpole}
spec:
  oauth_key: key
  oauth_secret: secret
  predictors:
  - name: default
    replicas: 1
    componentSpecs:
    - spec:
        containers:
        - {name: first, image: "someone/cartpole:1"}
        - {name: second, image: "someone/cartpole:2"}
    graph:
      name: ab
      implementation: RANDOM_ABTEST
      endpoint: {}
      parameters:
      - {name: ratioA, value: "0.25", type: FLOAT}
      children:
      - {name: first, type: MODEL, endpoint: {type: REST}, children: []}
      - {name: second, type: MODEL, endpoint: {type: REST}, children: []}
"""


def node(name, **more):
    return {"name": name, **more}


def model(name, **more):
    return node(name, type="MODEL", children=[], endpoint={"type": "REST"}, **more)


def deployment(*predictors, name="cartpole"):
    return {
        "apiVersion": "machinelearning.seldon.io/v1alpha2",
        "kind": "SeldonDeployment",
        "metadata": {"name": name},
        "spec": {"name": "test", "predictors": list(predictors)},
    }


def predictor(graph, images=None, **more):
    containers = [{"name": name, "image": image} for name, image in (images or {}).items()]
    return {"name": "default", "componentSpecs": [{"spec": {"containers": containers}}], "graph": graph, **more}


def router(implementation=None, parameters=(), name="eg-router", children=("a", "b"), **more):
    fields = {"implementation": implementation} if implementation else {}
    given = [{"name": word, "value": value, "type": "STRING"} for word, value in parameters]
    branches = [model(each) if isinstance(each, str) else each for each in children]
    return node(name, type="ROUTER", parameters=given, children=branches, **fields, **more)


def read(project, data):
    project.write("deployed.json", data)
    return load_graph("deployed.json", project.root)[0]


def test_an_ab_test_in_yaml_is_read(project):
    project.write("ab.yaml", ABTEST)
    spec, _ = load_graph("ab.yaml", project.root)
    assert (spec.name, spec.root.kind, spec.root.name, spec.root.weights) == ("cartpole", "abtest", "ab", (0.25, 0.75))
    assert [(branch.name, branch.policy) for branch in spec.root.branches] == [("first", "first"), ("second", "second")]
    assert spec.notices == (
        "oauth_secret is not used; the endpoint's token comes from --token-file",
        "no container is started: the policy of a model is the experiment of that name, or what modelUri names",
    )


@pytest.mark.parametrize(
    ("graph", "images", "bandit"),
    [
        (router("EPSILON_GREEDY", [("epsilon", "0.3"), ("n_branches", "2")]), None, ("epsilon_greedy", 0.3)),
        (router(), {"eg-router": "seldonio/mab_epsilon_greedy:1.3"}, ("epsilon_greedy", 0.1)),
        (router("THOMPSON_SAMPLING"), None, ("thompson", None)),
        (router(), {"eg-router": "seldonio/mab_thompson-sampling:0.1"}, ("thompson", None)),
    ],
    ids=["epsilon greedy", "its container", "thompson sampling", "its container too"],
)
def test_a_router_is_read(project, graph, images, bandit):
    root = read(project, deployment(predictor(graph, images))).root
    assert (root.kind, root.name, [each.name for each in root.branches]) == ("router", "eg-router", ["a", "b"])
    assert (root.bandit.type, getattr(root.bandit, "epsilon", None)) == bandit


def test_what_is_not_used_is_told(project):
    words = [("n_branches", "2"), ("seed", "7"), ("verbose", "1"), ("branch_names", "a:b")]
    spec = read(project, deployment(predictor(router("EPSILON_GREEDY", words))))
    assert spec.notices == (
        'the parameter "seed" of "eg-router" is not used',
        'the parameter "branch_names" of "eg-router" is not used',
    )


def test_routers_nest(project):
    inner = router("RANDOM_ABTEST", [("ratioA", "0.9")], "inner", ("b", "c"))
    spec = read(project, deployment(predictor(router("THOMPSON_SAMPLING", children=("a", inner)))))
    assert [each.name for each in spec.nodes()] == ["eg-router", "a", "inner", "b", "c"]


def test_a_model_uri_names_the_policy(project):
    for uri in ("runs/best", "file://runs/best"):
        root = read(project, deployment(predictor(model("a", implementation="SKLEARN_SERVER", modelUri=uri)))).root
        assert (root.name, root.policy) == ("a", "runs/best")


def test_predictors_share_the_traffic_or_stand_in_the_shadow(project):
    canary = [predictor(model("a"), traffic=75), predictor(model("b"), traffic=25), predictor(model("c"), shadow=True)]
    root = read(project, deployment(*canary)).root
    assert (root.kind, root.live.weights, [each.name for each in root.live.branches]) == (
        "shadow",
        (75, 25),
        ["a", "b"],
    )
    assert [each.name for each in root.shadows] == ["c"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (deployment(), "a SeldonDeployment needs a predictor in deployed.json at spec.predictors"),
        (deployment(predictor([1])), "there must be an object in deployed.json at spec.predictors[0].graph"),
        (
            deployment(predictor({})),
            "a node of the graph needs a name in deployed.json at spec.predictors[0].graph.name",
        ),
        (deployment(predictor(model("a", modelUri="gs://x/y"))), '"gs://x/y" is not on this machine'),
        (deployment(predictor(node("a", type="COMBINER"))), 'node "a" is a COMBINER; only models and routers'),
        (deployment(predictor(router("EPSILON_GREDY"))), 'did you mean "EPSILON_GREEDY"?'),
        (deployment(predictor(router())), 'it is not known how router "eg-router" chooses'),
        (
            deployment(predictor(router("EPSILON_GREEDY", [("epsilon", "x")]))),
            "parameters[0].value; it must be a number",
        ),
        (deployment(predictor(router("EPSILON_GREEDY", [("epsilon", "2")]))), "it must be at most 1"),
        (deployment(predictor(router("EPSILON_GREEDY", [("n_branches", "3")]))), "2 children, but its n_branches is 3"),
        (deployment(predictor(router("RANDOM_ABTEST", children="abc"))), "needs two children, not 3"),
        (deployment(predictor(router("RANDOM_ABTEST", [("ratioA", "2")]))), 'ratioA of "eg-router" must lie in 0 .. 1'),
        (deployment(predictor(node("a", type="MODEL", children=[model("b")]))), 'model "a" has children'),
        (deployment(predictor(router("RANDOM_ABTEST", children="aa"))), 'two nodes are called "a"'),
        (deployment(predictor(model("a"), shadow=True)), "so that none answers"),
        (deployment(predictor(model("a")), name="../a"), "cannot be a name in deployed.json at metadata.name"),
    ],
)
def test_what_cannot_be_served_is_told_with_its_place(project, data, sentence):
    with pytest.raises(SpecError) as error:
        read(project, data)
    assert sentence in str(error.value)
    assert "deployed.json" in str(error.value)
