"""The signature of a graph's policies, which checks observations, and the descriptions of its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.policies.heads import outputs_size
from steppe.serve.ledger._base import Arms
from steppe.serve.messages.exchange import (
    BranchStanding,
    Metadata,
    PolicyStanding,
    RouterStanding,
    ShadowStanding,
    Tensor,
)
from steppe.serve.routing.bandits import Arm
from steppe.serve.routing.compatibility import difference
from steppe.serve.routing.graph import Choice, Leaf, Node, PolicyGraph, Shadow
from steppe.specs.spaces import Box, Discrete, Space, to_json

PLATFORM = "steppe"
INPUT, ACTION, OUTPUTS = "observation", "action", "outputs"
_DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL"}
_DATATYPES |= {f"{sign}int{bits}": f"{sign}INT{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}


class PolicySignature:
    """Observation and action spaces, the same for all policies of a graph."""

    def __init__(self, observation: Space, action: Space) -> None:
        self.observation = observation
        self.action = action
        self.dtype = np.dtype(_input_type(observation))
        self._shape, self._dimensions = observation.shape, len(observation.shape)
        self._is_box = isinstance(observation, Box)
        self._is_float = self.dtype.kind == "f"

    def check(self, observations: Any, most_rows: int) -> np.ndarray:
        """Returns observations as [B, ...] in the policies' type; UserError if that is impossible or B >
        `most_rows`."""
        array = observations if type(observations) is np.ndarray else self._as_array(observations)
        if array.shape[1:] != self._shape or array.ndim != self._dimensions + 1:
            if array.shape != self._shape:
                raise UserError(f"observations must have the shape {self._expected()}, not {list(array.shape)}")
            array = array[None]
        if not len(array):
            raise UserError(f"there are no observations; they must have the shape {self._expected()}")
        if len(array) > most_rows:
            raise UserError(
                f"a question may have at most {most_rows} observations, not {len(array)}; send them in several"
            )
        if array.dtype != self.dtype:
            array = self._cast(array)
        # A finite sum means that all are finite, unless it overflows: one pass is nearly always enough.
        if self._is_float and not np.isfinite(array.sum(dtype=np.float64)) and not np.isfinite(array).all():
            raise UserError("observations must be finite numbers that fit in 32 bits; there is a NaN or an infinity")
        if not self._is_box:
            self._check_range(array)
        return array

    def difference(self, actions: np.ndarray, others: np.ndarray) -> float:
        """Distance of two answers [B, ...]: the share of other choices, or the mean distance of numbers."""
        if isinstance(self.action, Box):
            return float(np.mean(np.abs(actions.astype(np.float64) - others)))
        return float(np.mean(actions != others))

    def _as_array(self, observations: Any) -> np.ndarray:
        try:
            return np.asarray(observations)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"observations must be numbers of the shape {self._expected()}") from None

    def _cast(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind not in "fiub":
            raise UserError(f"observations must be numbers ({_datatype(self.dtype)}), not {array.dtype}")
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(self.dtype)
        if not self._is_float and not np.array_equal(cast, array):
            raise UserError(f"observations must be whole numbers that {_datatype(self.dtype)} can hold")
        return cast

    def _check_range(self, array: np.ndarray) -> None:
        space = self.observation
        first = space.start if isinstance(space, Discrete) else 0
        end = first + space.n if isinstance(space, Discrete) else np.asarray(space.nvec)  # type: ignore[union-attr]
        if np.any(array < first) or np.any(array >= end):
            raise UserError(f"observations must lie in {first} .. {end - 1}")

    def _expected(self) -> str:
        return f"{[*self._shape]} or {['batch', *self._shape]}".replace("'", "")


def signature_of(graph: PolicyGraph) -> PolicySignature:
    """The common signature of all policies of a graph; UserError if they differ."""
    first, *others = graph.leaves
    known = first.versions.current.policy.description
    for other in others:
        if (what := difference(known, other.versions.current.policy.description)) is not None:
            raise UserError(
                f'policies "{first.name}" and "{other.name}" have different {what}; a graph needs policies of the same '
                "environment"
            )
    return PolicySignature(known.shown, known.action)


def metadata(name: str, node: Node, version: str | None, form: PolicySignature, is_ready: bool) -> Metadata:
    """The description of a node that a client needs before it asks."""
    inner = PolicyGraph(node)
    policies = [leaf.versions.current.policy for leaf in inner.leaves]
    description = policies[0].description
    sizes = {outputs_size(policy.kind, form.action) for policy in policies}
    outputs = [Tensor(ACTION, _datatype(np.dtype(form.action.dtype)), (-1, *form.action.shape))]
    if sizes != {0}:
        outputs.append(Tensor(OUTPUTS, "FP32", (-1, sizes.pop() if len(sizes) == 1 else -1)))
    names = () if not isinstance(node, Leaf) else (version,) if version is not None else node.versions.names
    properties = {
        "kind": node.kind,
        "policies": [leaf.name for leaf in inner.leaves],
        "environment": description.environment,
        "observation": to_json(form.observation),
        "action": to_json(form.action),
        "recurrent": any(policy.is_recurrent for policy in policies),
    }
    inputs = (Tensor(INPUT, _datatype(form.dtype), (-1, *form.observation.shape)),)
    return Metadata(name, names, PLATFORM, inputs, tuple(outputs), is_ready, properties)


def router_standing(choice: Choice) -> RouterStanding:
    """Traffic and rewards of a router's branches."""
    total, best = sum(arm.requests for arm in choice.arms), choice.best()
    branches = tuple(
        BranchStanding(
            name=branch.name,
            requests=arm.requests,
            share=arm.requests / total if total else 0.0,
            decisions=arm.chosen,
            feedback=arm.count,
            mean_reward=arm.mean if arm.count else None,
            probability=probability,
            is_best=index == best,
        )
        for index, (branch, arm, probability) in enumerate(
            zip(choice.branches, choice.arms, choice.probabilities, strict=True)
        )
    )
    return RouterStanding(choice.name, choice.kind, None if choice.bandit is None else choice.bandit.type, branches)


def policy_standing(leaf: Leaf, arms: Arms) -> PolicyStanding:
    """Versions, traffic and rewards of one policy."""
    versions, arm = leaf.versions, arms.get((leaf.name, "")) or Arm()
    return PolicyStanding(
        name=leaf.name,
        version=versions.current.name,
        pinned=versions.pinned is not None,
        versions=versions.names,
        problem=versions.problem,
        requests=arm.requests,
        feedback=arm.count,
        mean_reward=arm.mean if arm.count else None,
    )


def shadow_standing(shadow: Shadow, leaf: Leaf, arms: Arms) -> ShadowStanding:
    """How far a shadow policy is from the policy that answers."""
    arm = arms.get((shadow.name, leaf.name)) or Arm()
    difference = arm.mean if arm.count else None
    return ShadowStanding(shadow.name, leaf.name, arm.requests, difference, arm.requests - arm.count)


def _input_type(space: Space) -> str:
    if isinstance(space, Box):
        return "uint8" if space.dtype == "uint8" else "float32"
    return "int32"


def _datatype(dtype: np.dtype) -> str:
    return _DATATYPES.get(str(dtype), str(dtype))
