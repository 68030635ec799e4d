"""A graph of policies: chooses a path from a node down to one policy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from steppe.serve.ledger._base import Arms, Step
from steppe.serve.routing import bandits
from steppe.serve.routing.bandits import Arm, Bandit
from steppe.serve.versions import Versions
from steppe.specs.serving import AbTestSpec, GraphSpec, ModelSpec, RouterSpec, ShadowSpec


@dataclass(slots=True, eq=False)
class Leaf:
    """One policy."""

    name: str
    versions: Versions
    deterministic: bool
    kind: ClassVar = "model"


class Choice:
    """An A/B test or a router: chooses one of several branches."""

    def __init__(self, name: str, branches: list[Node], weights: list[float], bandit: Bandit | None) -> None:
        self.name = name
        self.branches = branches
        self.bandit = bandit
        self.arms = [Arm() for _ in branches]
        self.steps: list[Step] = [(name, branch.name) for branch in branches]
        self._set(weights)
        self.learn({})

    @property
    def kind(self) -> str:
        """Its kind in a graph's file."""
        return "abtest" if self.bandit is None else "router"

    def learn(self, arms: Arms) -> None:
        """Updates the branches' statistics, and a bandit's probabilities."""
        self.arms = [arms.get(step) or Arm() for step in self.steps]
        if self.bandit is not None:
            self._set(bandits.probabilities(self.bandit, self.arms).tolist())

    def choose(self, number: float) -> int:
        """The index of the branch for a number in 0 .. 1; a uniform number chooses each with its probability."""
        return bisect_right(self._ends, number)

    def best(self) -> int | None:
        """The branch with the highest mean; None before the first reward."""
        known = [index for index, arm in enumerate(self.arms) if arm.count]
        return max(known, key=lambda index: self.arms[index].mean) if known else None

    def _set(self, probabilities: list[float]) -> None:
        total = sum(probabilities)
        self.probabilities = [each / total for each in probabilities]
        # The last end is left out, since rounding could leave it just below 1.
        last = max(index for index, each in enumerate(self.probabilities) if each > 0.0)
        self._ends = list(accumulate(self.probabilities))[:last]


@dataclass(slots=True, eq=False)
class Shadow:
    """A branch that answers, and shadow policies that are only asked."""

    name: str
    live: Node
    shadows: list[Leaf]
    kind: ClassVar = "shadow"


Node = Leaf | Choice | Shadow


@dataclass(frozen=True, slots=True, eq=False)
class GraphPath:
    """A path from a node down to one policy. Its probability changes, the path does not."""

    leaf: Leaf
    route: tuple[tuple[str, int], ...]
    """(router's name, index of its branch)."""
    steps: tuple[Step, ...]
    """The same with the branch's name, ending with the policy's own step."""
    shadows: tuple[tuple[Step, Leaf], ...]
    """The shadow policies on the path."""
    start: str
    """The name of the node where it begins."""
    is_routed: bool
    """Whether that node is the root."""


class PolicyGraph:
    """All nodes by name, and all paths through them."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes: dict[str, Node] = {node.name: node for node in _below(root)}
        self._paths = {
            (start.name, path.leaf.name): path
            for start in self.nodes.values()
            for path in _paths(start, start.name, start is root)
        }

    @property
    def leaves(self) -> list[Leaf]:
        """Every policy, including shadows."""
        return [node for node in self.nodes.values() if isinstance(node, Leaf)]

    @property
    def choices(self) -> list[Choice]:
        """Every A/B test and router."""
        return [node for node in self.nodes.values() if isinstance(node, Choice)]

    @property
    def shadows(self) -> list[Shadow]:
        """Every node with shadow policies."""
        return [node for node in self.nodes.values() if isinstance(node, Shadow)]

    def choose(self, start: Node, draw: Callable[[], float]) -> tuple[GraphPath, float]:
        """(path from a node to a policy, its probability); `draw` returns numbers in 0 .. 1."""
        node, propensity = start, 1.0
        while not isinstance(node, Leaf):
            if isinstance(node, Choice):
                index = node.choose(draw())
                propensity *= node.probabilities[index]
                node = node.branches[index]
            else:
                node = node.live
        return self._paths[start.name, node.name], propensity

    def find(self, policy: str, steps: tuple[Step, ...]) -> GraphPath | None:
        """The path to a policy that was recorded as these steps, if this graph still has it."""
        start = self.nodes.get(steps[0][0]) if steps else None
        candidates = [self._paths.get((start.name, policy))] if start is not None else []
        # A shadow node leaves no step of its own, so the path may begin at the root.
        candidates.append(self._paths.get((self.root.name, policy)))
        return next((path for path in candidates if path is not None and path.steps == steps), None)

    def indexed(self, route: tuple[Step, ...]) -> tuple[tuple[str, int], ...]:
        """A route with branch indices instead of names; -1 for a branch that no longer exists."""
        known = {step: index for choice in self.choices for index, step in enumerate(choice.steps)}
        return tuple((router, known.get((router, branch), -1)) for router, branch in route)

    def learn(self, arms: Arms) -> None:
        """Updates the statistics of all branches."""
        for choice in self.choices:
            choice.learn(arms)


def build(spec: GraphSpec, load: Callable[[ModelSpec], Versions]) -> PolicyGraph:
    """Builds a graph from its spec; `load` returns the versions of a policy."""
    return PolicyGraph(_build(spec.root, load))


def _build(spec: ModelSpec | AbTestSpec | RouterSpec | ShadowSpec, load: Callable[[ModelSpec], Versions]) -> Node:
    match spec:
        case ModelSpec():
            return Leaf(spec.name, load(spec), spec.deterministic)
        case AbTestSpec() | RouterSpec():
            branches, even = [_build(branch, load) for branch in spec.branches], [1.0] * len(spec.branches)
            if isinstance(spec, RouterSpec):
                return Choice(spec.name, branches, even, spec.bandit)
            return Choice(spec.name, branches, list(spec.weights or even), None)
        case ShadowSpec():
            shadows = [Leaf(each.name, load(each), each.deterministic) for each in spec.shadows]
            return Shadow(spec.name, _build(spec.live, load), shadows)


def _below(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Choice):
        for branch in node.branches:
            yield from _below(branch)
    elif isinstance(node, Shadow):
        yield from _below(node.live)
        yield from node.shadows


def _paths(node: Node, start: str, is_routed: bool) -> Iterator[GraphPath]:
    """Every path from a node down."""
    if isinstance(node, Leaf):
        yield GraphPath(node, (), ((node.name, ""),), (), start, is_routed)
    elif isinstance(node, Choice):
        for index, branch in enumerate(node.branches):
            for path in _paths(branch, start, is_routed):
                route, steps = ((node.name, index), *path.route), (node.steps[index], *path.steps)
                yield GraphPath(path.leaf, route, steps, path.shadows, start, is_routed)
    else:
        own = tuple(((node.name, leaf.name), leaf) for leaf in node.shadows)
        for path in _paths(node.live, start, is_routed):
            yield GraphPath(path.leaf, path.route, path.steps, (*own, *path.shadows), start, is_routed)
