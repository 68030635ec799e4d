"""A graph of policies at work: from its root to one policy, by the probabilities of the moment."""

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
    """An A/B test or a router: one of several branches."""

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
        """The word for it in a graph's file."""
        return "abtest" if self.bandit is None else "router"

    def learn(self, arms: Arms) -> None:
        """Takes in what is now known of the branches."""
        self.arms = [arms.get(step) or Arm() for step in self.steps]
        if self.bandit is not None:
            self._set(bandits.probabilities(self.bandit, self.arms).tolist())

    def choose(self, number: float) -> int:
        """The branch that a number in 0 .. 1 falls on; as likely as its probability where the number is uniform."""
        return bisect_right(self._ends, number)

    def best(self) -> int | None:
        """The branch with the highest mean, once any has one."""
        known = [index for index, arm in enumerate(self.arms) if arm.count]
        return max(known, key=lambda index: self.arms[index].mean) if known else None

    def _set(self, probabilities: list[float]) -> None:
        total = sum(probabilities)
        self.probabilities = [each / total for each in probabilities]
        # The last end is left out: rounding could leave it just below 1.
        last = max(index for index, each in enumerate(self.probabilities) if each > 0.0)
        self._ends = list(accumulate(self.probabilities))[:last]


@dataclass(slots=True, eq=False)
class Shadow:
    """A branch that answers, and policies that are only asked."""

    name: str
    live: Node
    shadows: list[Leaf]
    kind: ClassVar = "shadow"


Node = Leaf | Choice | Shadow


@dataclass(frozen=True, slots=True, eq=False)
class GraphPath:
    """The way from a node down to one policy; how likely it is changes, the way does not."""

    leaf: Leaf
    route: tuple[tuple[str, int], ...]
    """(chooser's name, index of its branch)."""
    steps: tuple[Step, ...]
    """The same with the branch's name, and the policy's own step at the end."""
    shadows: tuple[tuple[Step, Leaf], ...]
    """The policies that are asked too."""
    start: str
    """The node it begins at."""
    is_routed: bool
    """Whether that is the root."""


class PolicyGraph:
    """All nodes by name, and all ways through them."""

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
        """Every policy, those in a shadow too."""
        return [node for node in self.nodes.values() if isinstance(node, Leaf)]

    @property
    def choices(self) -> list[Choice]:
        """Every node that chooses."""
        return [node for node in self.nodes.values() if isinstance(node, Choice)]

    @property
    def shadows(self) -> list[Shadow]:
        """Every node with policies in its shadow."""
        return [node for node in self.nodes.values() if isinstance(node, Shadow)]

    def choose(self, start: Node, draw: Callable[[], float]) -> tuple[GraphPath, float]:
        """(a way from a node to a policy, the probability with which it was chosen); `draw` gives numbers in 0 .. 1."""
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
        """The way to a policy that was written down as these steps, if this graph still has it."""
        start = self.nodes.get(steps[0][0]) if steps else None
        candidates = [self._paths.get((start.name, policy))] if start is not None else []
        # A root that is a shadow leaves no step of its own.
        candidates.append(self._paths.get((self.root.name, policy)))
        return next((path for path in candidates if path is not None and path.steps == steps), None)

    def indexed(self, route: tuple[Step, ...]) -> tuple[tuple[str, int], ...]:
        """A route with the index of each branch in place of its name; -1 for one that the graph has no longer."""
        known = {step: index for choice in self.choices for index, step in enumerate(choice.steps)}
        return tuple((router, known.get((router, branch), -1)) for router, branch in route)

    def learn(self, arms: Arms) -> None:
        """Takes in what is now known of all branches."""
        for choice in self.choices:
            choice.learn(arms)


def build(spec: GraphSpec, load: Callable[[ModelSpec], Versions]) -> PolicyGraph:
    """A graph made of its spec; `load` gives the versions of a policy."""
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
    """Every way from a node down."""
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
