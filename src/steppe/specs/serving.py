"""A graph of policies to serve: one policy, an A/B test, a router that learns, a shadow, or any of them nested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, RootModel, model_validator

from steppe.errors import SpecError, UserError
from steppe.specs._base import Count, Flag, NonNegative, Positive, Spec, Unit
from steppe.specs.loading.files import find_config, read_spec_file, shown_path
from steppe.specs.loading.validation import Origins, validate
from steppe.specs.seldon_deployment import is_deployment, read_deployment

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""The form of a name, which may not have two dots in a row either."""


def _is_name(text: str) -> bool:
    # Names are used in addresses, labels of metrics and folders.
    return NAME.fullmatch(text) is not None and ".." not in text


def _checked_name(name: str) -> str:
    if not _is_name(name):
        raise ValueError(
            'a name is made of letters, digits, ".", "_" and "-", does not start with "." or "-", '
            'and has no ".." and at most 100 characters'
        )
    return name


def check_name(name: str) -> None:
    """Refuses a name that no endpoint can have; endpoints name folders too."""
    try:
        _checked_name(name)
    except ValueError as error:
        raise UserError(f'"{name[:100]}" cannot be the name of an endpoint: {error}') from None


Name = Annotated[str, AfterValidator(_checked_name)]
Text = Annotated[str, Field(min_length=1)]


class EpsilonGreedy(Spec):
    """Mostly the branch with the highest mean reward, sometimes a random one."""

    type: Literal["epsilon_greedy"] = "epsilon_greedy"
    epsilon: Unit = 0.1
    """The share of episodes that go to a random branch."""
    patience: Count = 100
    """The number of times that a branch is tried at first even if no reward comes back from it."""


class Ucb1(Spec):
    """The branch whose mean reward may be highest, by an upper confidence bound (Auer et al. 2002)."""

    type: Literal["ucb1"] = "ucb1"
    exploration: NonNegative = 1.0
    """The width of the bound, as a multiple of that in the paper."""
    reward_range: Positive | None = None
    """The distance between the lowest and the highest possible reward; by default that of the rewards seen."""
    floor: Unit = 0.01
    """The least probability of every branch; at 0, branches cannot be compared off-line."""
    patience: Count = 100
    """The number of times that a branch is tried at first even if no reward comes back from it."""


class Thompson(Spec):
    """Each branch as often as its mean reward is likely to be the highest (Thompson 1933), for normal rewards."""

    type: Literal["thompson"] = "thompson"
    floor: Unit = 0.01
    """The least probability of every branch; at 0, branches cannot be compared off-line."""
    patience: Count = 100
    """The number of times that a branch is tried at first even if no reward comes back from it."""


def _understood_bandit(value: Any) -> Any:
    value = {"type": value} if isinstance(value, str) else value
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        value = value | {"type": value["type"].replace("-", "_").lower()}
    return value


BanditSpec = Annotated[
    Annotated[EpsilonGreedy | Ucb1 | Thompson, Field(discriminator="type", title="bandit")],
    BeforeValidator(_understood_bandit),
]


class ModelSpec(Spec):
    """One policy."""

    kind: Literal["model"] = "model"
    name: Name = ""
    """The node's name; by default that of its experiment or folder."""
    policy: Text
    """An experiment's name, or the path of a run folder or a policy folder (seen from the graph's file)."""
    version: Text | None = None
    """The one version to serve; by default the newest."""
    deterministic: Flag = True
    """Whether it takes its best action, unless a request says otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _is_named_like_its_policy(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" not in data and isinstance(data.get("policy"), str):
            parts = [part for part in PurePath(data["policy"]).parts if part not in ("policy", "/", ".", "..")]
            words = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "policy")
            return data | {"name": re.sub(r"\.+", ".", words).lstrip(".-")[:100] or "policy"}
        return data


class AbTestSpec(Spec):
    """Each episode goes to one of several branches, by fixed weights."""

    kind: Literal["abtest"] = "abtest"
    name: Name = "abtest"
    """The node's name."""
    branches: Annotated[tuple[Node, ...], Field(min_length=2)]
    """The branches that it chooses from."""
    weights: tuple[NonNegative, ...] | None = None
    """The share of the traffic of each branch, in any unit; equal by default."""

    @model_validator(mode="after")
    def _has_a_weight_for_each(self) -> AbTestSpec:
        if self.weights is not None:
            if len(self.weights) != len(self.branches):
                raise ValueError(f"{len(self.branches)} branches need as many weights, not {len(self.weights)}")
            if not sum(self.weights):
                raise ValueError("at least one weight must be more than 0")
        return self


class RouterSpec(Spec):
    """Each episode goes to one of several branches, and rewards teach which is best."""

    kind: Literal["router"] = "router"
    name: Name = "router"
    """The node's name."""
    branches: Annotated[tuple[Node, ...], Field(min_length=2)]
    """The branches that it chooses from."""
    bandit: BanditSpec = EpsilonGreedy()
    """The method of choice: epsilon_greedy, ucb1 or thompson, with its settings."""

    @model_validator(mode="after")
    def _has_room_for_the_floor(self) -> RouterSpec:
        floor = getattr(self.bandit, "floor", 0.0)
        if floor * len(self.branches) > 1.0:
            raise ValueError(f"{len(self.branches)} branches cannot each have a probability of at least {floor:g}")
        return self


class ShadowSpec(Spec):
    """One branch answers; policies in its shadow get the same requests and are only compared with it."""

    kind: Literal["shadow"] = "shadow"
    name: Name = "shadow"
    """The node's name."""
    live: Node
    """The node that answers."""
    shadows: Annotated[tuple[ShadowedModel, ...], Field(min_length=1)]
    """The policies in the shadow."""


def _understood_node(value: Any) -> Any:
    """A bare text is a policy, and a node with a policy need not have a kind."""
    if isinstance(value, str):
        return {"kind": "model", "policy": value}
    if isinstance(value, dict) and "kind" not in value and "policy" in value:
        return {"kind": "model", **value}
    return value


Node = Annotated[
    Annotated[
        ModelSpec | AbTestSpec | RouterSpec | ShadowSpec, Field(discriminator="kind", title="kind of graph node")
    ],
    BeforeValidator(_understood_node),
]
ShadowedModel = Annotated[ModelSpec, BeforeValidator(_understood_node)]


class GraphSpec(RootModel[Node]):
    """A whole graph: its root, with everything below it."""

    _name: str | None = PrivateAttr(None)
    _notices: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _has_a_name_for_each(self) -> GraphSpec:
        names = [node.name for node in self.nodes()]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f'two nodes are called "{repeated}"; give each a "name" of its own')
        return self

    @property
    def name(self) -> str:
        """The endpoint's name: the root's, or that of the deployment it was read from."""
        return self._name or self.root.name

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about the file's unused parts."""
        return self._notices

    def nodes(self) -> Iterator[ModelSpec | AbTestSpec | RouterSpec | ShadowSpec]:
        """Every node, each before those below it."""
        yield from _below(self.root)


def load_graph(file: str | Path, start: Path) -> tuple[GraphSpec, Path]:
    """(the graph in a file, the file): a path, or a name in the project's configs/graphs/.

    The file may be a SeldonDeployment.
    """
    path = find_config(file, "graph", start)
    data, origins = _understood_node(read_spec_file(path)), Origins(shown_path(path))
    if is_deployment(data):
        return _deployed(data, origins), path
    if isinstance(data, dict) and "name" not in data and _is_name(path.stem):
        data = {"name": path.stem} | data
    return validate(GraphSpec, data, source=origins), path


def _deployed(data: dict[str, Any], origins: Origins) -> GraphSpec:
    deployment = read_deployment(data, origins)
    spec = validate(GraphSpec, deployment.graph, source=origins)
    if deployment.name is not None and not _is_name(deployment.name):
        raise SpecError(f'"{deployment.name[:100]}" cannot be a name{origins.place("metadata", "name")}')
    spec._name, spec._notices = deployment.name, deployment.notices
    return spec


def _below(node: Any) -> Iterator[Any]:
    yield node
    for branch in (*getattr(node, "branches", ()), *([node.live, *node.shadows] if node.kind == "shadow" else ())):
        yield from _below(branch)


for _model in (AbTestSpec, RouterSpec, ShadowSpec, GraphSpec):
    _model.model_rebuild()
