"""Reads a SeldonDeployment, the file of a graph in Seldon Core 1, as a graph of Steppe's.

A model's policy is the experiment with the model's name, or the one that its `modelUri` names. No container is started.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from steppe.errors import SpecError
from steppe.specs.loading.suggestions import did_you_mean, quoted
from steppe.specs.loading.validation import Origins, Steps

KIND = "SeldonDeployment"
BANDITS = {"EPSILON_GREEDY": "epsilon_greedy", "THOMPSON_SAMPLING": "thompson"}
ABTEST = "RANDOM_ABTEST"
ROUTERS = (ABTEST, *BANDITS)
MODELS = ("", "MODEL", "UNKNOWN_TYPE")
SERVERS = ("SIMPLE_MODEL", "UNKNOWN_IMPLEMENTATION")
"""Implementations of a model beside the prepackaged ones, whose names end in _SERVER."""
QUIET = ("n_branches", "verbose", "debug", "model_uri", "method")
"""Parameters that need no notice: they repeat the graph or configure a container."""


class Deployment(NamedTuple):
    """A SeldonDeployment in Steppe's words."""

    name: str | None
    """The deployment's name."""
    graph: dict[str, Any]
    notices: tuple[str, ...]
    """Notices about its other fields."""


def is_deployment(data: Any) -> bool:
    """Whether the content of a file is a SeldonDeployment."""
    return isinstance(data, dict) and data.get("kind") == KIND


def read_deployment(data: dict[str, Any], origins: Origins) -> Deployment:
    """The graph of a SeldonDeployment; raises a SpecError for parts that Steppe does not support."""
    return _Reader(origins).read(data)


class _Reader:
    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._notices: list[str] = []
        self._images: dict[str, str] = {}
        """The image of each container of the predictor that is being read."""

    def read(self, data: dict[str, Any]) -> Deployment:
        spec = self._object(data.get("spec"), ("spec",))
        metadata = self._object(data.get("metadata", {}), ("metadata",))
        name = metadata.get("name", spec.get("name"))
        if name is not None and not isinstance(name, str):
            raise self._mistake("the name of a deployment must be text", ("metadata", "name"))
        if "oauth_secret" in spec:
            self._notices.append("oauth_secret is not used; the endpoint's token comes from --token-file")
        predictors = self._list(spec.get("predictors"), ("spec", "predictors"))
        if not predictors:
            raise self._mistake("a SeldonDeployment needs a predictor", ("spec", "predictors"))
        return Deployment(name, self._joined(predictors), tuple(self._notices))

    def _joined(self, predictors: list[Any]) -> dict[str, Any]:
        """One graph of all predictors: the live ones as an A/B test by their traffic, the others as its shadows."""
        live: list[dict[str, Any]] = []
        traffic: list[float] = []
        shadows: list[dict[str, Any]] = []
        for index, each in enumerate(predictors):
            steps: Steps = ("spec", "predictors", index)
            predictor = self._object(each, steps)
            graph = self._predictor(predictor, steps)
            if predictor.get("shadow") is True:
                if graph["kind"] != "model":
                    raise self._mistake("a predictor in the shadow must be one model", steps)
                shadows.append(graph)
            else:
                live.append(graph)
                traffic.append(self._number(predictor.get("traffic", 0), (*steps, "traffic")))
        if not live:
            raise self._mistake("all predictors are in the shadow, so that none answers", ("spec", "predictors"))
        root = live[0]
        if len(live) > 1:
            root = {"kind": "abtest", "name": "predictors", "branches": live}
            if any(traffic):
                root["weights"] = traffic
        return {"kind": "shadow", "name": "shadow", "live": root, "shadows": shadows} if shadows else root

    def _predictor(self, predictor: dict[str, Any], steps: Steps) -> dict[str, Any]:
        self._images = dict(_images(predictor.get("componentSpecs")))
        graph = self._node(predictor.get("graph"), (*steps, "graph"))
        if self._images:
            self._notices.append(
                "no container is started: the policy of a model is the experiment of that name, or what modelUri names"
            )
        return graph

    def _node(self, data: Any, steps: Steps) -> dict[str, Any]:
        node = self._object(data, steps)
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise self._mistake("a node of the graph needs a name", (*steps, "name"))
        kind = str(node.get("type") or "").upper()
        implementation = str(node.get("implementation") or "").upper()
        children = self._list(node.get("children") or [], (*steps, "children"))
        if not implementation and kind == "ROUTER":
            implementation = self._implementation_of_image(name, steps)
        if implementation in ROUTERS:
            return self._router(node, name, implementation, children, steps)
        is_server = not implementation or implementation in SERVERS or implementation.endswith("_SERVER")
        if not is_server:
            way_out = did_you_mean(implementation, ROUTERS) or f"; a router is {quoted(ROUTERS)}"
            raise self._mistake(f'unknown implementation "{implementation}" of node "{name}"', steps, way_out)
        if kind not in MODELS:
            raise self._mistake(f'node "{name}" is a {kind}; only models and routers can be served', steps)
        if children:
            raise self._mistake(f'model "{name}" has children; only routers can have some', steps)
        return self._model(node, name, steps)

    def _model(self, node: dict[str, Any], name: str, steps: Steps) -> dict[str, Any]:
        self._parameters(node, (), name, steps)
        uri = node.get("modelUri")
        if not uri:
            return {"kind": "model", "name": name, "policy": name}
        path = str(uri).removeprefix("file://")
        if "://" in path:
            way_out = "; download it, and name the policy folder"
            raise self._mistake(f'"{uri}" is not on this machine', (*steps, "modelUri"), way_out)
        return {"kind": "model", "name": name, "policy": path}

    def _router(
        self, node: dict[str, Any], name: str, implementation: str, children: list[Any], steps: Steps
    ) -> dict[str, Any]:
        known = ("ratioA",) if implementation == ABTEST else ("epsilon",) if "EPSILON" in implementation else ()
        given = self._parameters(node, (*known, "n_branches"), name, steps)
        branches = [self._node(each, (*steps, "children", index)) for index, each in enumerate(children)]
        expected = given.get("n_branches", len(branches))
        if expected != len(branches):
            words = f'router "{name}" has {len(branches)} children, but its n_branches is {expected:g}'
            raise self._mistake(words, (*steps, "parameters"))
        if implementation == ABTEST:
            if len(branches) != 2:
                raise self._mistake(f'{ABTEST} "{name}" needs two children, not {len(branches)}', (*steps, "children"))
            ratio = given.get("ratioA", 0.5)
            if not 0 <= ratio <= 1:
                raise self._mistake(f'ratioA of "{name}" must lie in 0 .. 1', (*steps, "parameters"))
            return {"kind": "abtest", "name": name, "branches": branches, "weights": [ratio, 1 - ratio]}
        bandit = {"type": BANDITS[implementation]} | {word: given[word] for word in known if word in given}
        return {"kind": "router", "name": name, "branches": branches, "bandit": bandit}

    def _implementation_of_image(self, name: str, steps: Steps) -> str:
        """The bandit in the name of a router's image, if its node has no implementation, as in Seldon's first files."""
        image = self._images.get(name, "").upper().replace("-", "_")
        for word in BANDITS:
            if word in image:
                return word
        way_out = f"; give it an implementation: {quoted(ROUTERS)}"
        raise self._mistake(f'it is not known how router "{name}" chooses', steps, way_out)

    def _parameters(self, node: dict[str, Any], known: tuple[str, ...], name: str, steps: Steps) -> dict[str, float]:
        """The values of the `known` parameters; others get a notice."""
        found: dict[str, float] = {}
        for index, each in enumerate(self._list(node.get("parameters") or [], (*steps, "parameters"))):
            place = (*steps, "parameters", index)
            parameter = self._object(each, place)
            word = parameter.get("name")
            if word in known:
                found[word] = self._number(parameter.get("value"), (*place, "value"))
            elif word not in QUIET:
                self._notices.append(f'the parameter "{word}" of "{name}" is not used')
        return found

    def _number(self, value: Any, steps: Steps) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise self._mistake(f"wrong value {value}", steps, "; it must be a number") from None

    def _object(self, value: Any, steps: Steps) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._mistake("there must be an object", steps)
        return value

    def _list(self, value: Any, steps: Steps) -> list[Any]:
        if not isinstance(value, list):
            raise self._mistake("there must be a list", steps)
        return value

    def _mistake(self, words: str, steps: Steps, way_out: str = "") -> SpecError:
        return SpecError(f"{words}{self._origins.place(*steps)}{way_out}")


def _images(components: Any) -> list[tuple[str, str]]:
    """(container's name, image) of everything in componentSpecs; malformed entries are skipped."""
    pods = [each.get("spec") for each in components if isinstance(each, dict)] if isinstance(components, list) else []
    containers = [pod.get("containers") for pod in pods if isinstance(pod, dict)]
    return [
        (str(each.get("name")), str(each.get("image")))
        for several in containers
        if isinstance(several, list)
        for each in several
        if isinstance(each, dict)
    ]
