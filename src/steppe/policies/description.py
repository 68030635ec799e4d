"""The description of a policy without its tensors, and the names and shapes of the tensors that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steppe.errors import SpecError
from steppe.policies import heads
from steppe.policies.layers import plan
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Space, from_json, to_json


@dataclass(frozen=True)
class PolicyDescription:
    """Everything about a policy but its tensors.

    `head` is {"kind": ...}, with a kind of `steppe.policies.heads`; a q_values head may add "dueling": true, and
    "epsilon": how often it explores when it samples. `normalizer` is {"clip": 10.0} or None. `observation` is the input
    space of the network. With `preprocessing` the policy itself takes the observations of the environment.
    """

    agent: str
    environment: str
    timestep: int
    observation: Space
    action: Space
    network: NetworkSpec | None = None
    head: dict[str, Any] = field(default_factory=lambda: {"kind": "random"})
    normalizer: dict[str, Any] | None = None
    preprocessing: Preprocessing | None = None

    @property
    def shown(self) -> Space:
        """The space of the policy's input, which is that of the environment's observations."""
        return self.observation if self.preprocessing is None else self.preprocessing.observation

    def to_json(self) -> dict[str, Any]:
        """For policy.json."""
        return {
            "agent": self.agent,
            "environment": self.environment,
            "timestep": int(self.timestep),
            "observation": to_json(self.observation),
            "action": to_json(self.action),
            "network": None if self.network is None else self.network.model_dump(),
            "head": self.head,
            "normalizer": self.normalizer,
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], allowed: AllowedModules, whose: str = "the policy") -> PolicyDescription:
        """The inverse of `to_json`; raises ModuleNotAllowed, naming `whose` policy, unless modules are `allowed`."""
        network = None if data["network"] is None else NetworkSpec.model_validate(data["network"])
        allowed.check_network(network, whose)
        observation, action = from_json(data["observation"]), from_json(data["action"])
        rest = {name: data[name] for name in ("agent", "environment", "timestep", "head", "normalizer")}
        stages = data.get("preprocessing")
        preprocessing = None if stages is None else Preprocessing.from_json(stages)
        return cls(observation=observation, action=action, network=network, preprocessing=preprocessing, **rest)


def tensor_shapes(description: PolicyDescription) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor of a policy with this description."""
    kind, action = description.head["kind"], description.action
    if kind == "random":
        return {}
    if kind == "constant":
        return {"constant/action": action.shape}
    if description.network is None:
        raise SpecError(f'a policy with a "{kind}" head needs a network')
    network, outputs = plan(description.network, description.observation), heads.outputs_size(kind, action)
    shapes = {f"torso/{step.name}/{name}": shape for step in network.steps for name, shape in step.parameters}
    parts = {"value/": 1, "advantage/": outputs} if description.head.get("dueling") else {"": outputs}
    for part, size in parts.items():
        shapes |= {f"head/{part}kernel": (network.features, size), f"head/{part}bias": (size,)}
    if kind == "gaussian":
        shapes["head/log_std"] = (outputs,)
    if description.normalizer is not None:
        shapes |= {f"normalizer/{name}": description.observation.shape for name in ("mean", "var")}
    return shapes
