"""The effective settings of a run: those of its spec with all defaults and all values derived from others."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from pydantic import BaseModel, RootModel

from steppe.agents import agent_class
from steppe.envs.registry import DEFAULT_EPISODE_LIMIT, plays_atari
from steppe.policies.layers import plan
from steppe.runners.setup import num_envs_of, runs_compiled
from steppe.specs.describing.field_rows import as_written
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, Space


def effective(spec: ExperimentSpec, agent: Any) -> dict[str, Any]:
    """The section `effective` of experiment.json, for an agent that was built from `spec`.

    `given` lists the paths of all settings that the experiment gives, and `without_effect` those of the agent that this
    run does not use.
    """
    # Not those of the agent object: a worker's memory is only a part of the whole.
    settings = spec.agent.settings_as(agent_class(spec.agent).Settings)
    episodes, timesteps = spec.limits
    return {
        "agent": {"type": spec.agent.type} | _agent_settings(agent, settings),
        "network": _network(agent),
        "environment": _environment(spec, agent),
        "limits": {"total_timesteps": timesteps, "episodes": episodes, "stop_at_return": spec.stop_at_return},
        "given": sorted(set(_given(spec, settings))),
        "without_effect": sorted(_without_effect(agent, settings)),
    }


def _agent_settings(agent: Any, settings: Any) -> dict[str, Any]:
    """All settings of the agent, with the values that stand for "auto" and null."""
    values = settings.model_dump(mode="json")
    values |= {name: value for name, value in agent.resolved_settings.items() if name in values}
    # For these settings null means the value of another one.
    for name, source in (
        ("critic_learning_rate", values.get("learning_rate")),
        ("critic_optimizer", values.get("optimizer")),
    ):
        if name in values and values[name] is None:
            values[name] = source
    return values


def _network(agent: Any) -> dict[str, Any] | None:
    """Each layer with the shape of its output, and the number of parameters."""
    layers, layout = agent.layers, agent.layout
    if layers is None:
        return None
    parts: dict[str, int] = {}
    for name, size in layout.sizes().items():
        part = name.partition("/")[0]
        parts[part] = parts.get(part, 0) + size
    return {
        "layers": _layers(layers, agent.context.observation),
        "parameters": layout.size,
        "parameters_of": parts,
    }


def _layers(layers: NetworkSpec, observation: Space) -> list[dict[str, Any]]:
    return [
        step.layer.model_dump(mode="json")
        | {"output": list(step.output), "parameters": sum(prod(shape) for _, shape in step.parameters)}
        for step in plan(layers, observation).steps
    ]


def _environment(spec: ExperimentSpec, agent: Any) -> dict[str, Any]:
    environment, context = spec.environment, agent.context
    backend = _backend(spec)
    limit = context.episode_limit or spec.max_timesteps_per_episode or DEFAULT_EPISODE_LIMIT
    told = environment.model_dump(mode="json") | {"backend": backend}
    if environment.vectorization == "auto":
        told["vectorization"] = "sync" if backend == "gymnasium" else None
    return told | {
        "num_envs": num_envs_of(spec),
        "max_timesteps_per_episode": limit,
        "repeat_actions": spec.repeat_actions,
        "observation": _space(context.observation),
        "action": _space(context.action),
    }


def _backend(spec: ExperimentSpec) -> str:
    if spec.environment.id == "remote":
        return "remote"
    if spec.run_mode != "async" and runs_compiled(spec):
        return "compiled"
    return "atari" if plays_atari(spec.environment) else "gymnasium"


def _space(space: Space) -> dict[str, Any]:
    """The kind and size of a space, without the bounds of each of its numbers, which may be thousands."""
    match space:
        case Box():
            parts = [part.name for part in space.parts]
            return {"type": "box", "shape": list(space.shape), "dtype": space.dtype} | (
                {"parts": parts} if parts else {}
            )
        case Discrete():
            return {"type": "discrete", "n": space.n, "start": space.start}
        case _:
            return {"type": "multi_discrete", "nvec": list(space.nvec)}


def _given(spec: ExperimentSpec, settings: Any) -> Iterator[str]:
    """The paths of the given settings.

    An agent's settings are kept as they were written; of all others those that differ from their defaults count.
    """
    yield "agent.type"
    yield from _set_in(settings, "agent.")
    for name, value in as_written(spec).items():
        if name == "network":
            yield name
        elif name in ("num_envs", "max_timesteps_per_episode", "repeat_actions"):
            yield f"environment.{name}"
        elif name in ("total_timesteps", "episodes", "stop_at_return"):
            yield f"limits.{name}"
        elif name != "agent":
            yield from _paths(value, name)


def _paths(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield path
    elif value:
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}")


def _set_in(model: BaseModel, prefix: str) -> Iterator[str]:
    for name in model.model_fields_set & type(model).model_fields.keys():
        value = getattr(model, name)
        is_group = isinstance(value, BaseModel) and not isinstance(value, RootModel)
        inner = list(_set_in(value, f"{prefix}{name}.")) if is_group else []
        yield from inner or [f"{prefix}{name}"]


def _without_effect(agent: Any, settings: Any) -> Iterator[str]:
    """Settings that depend on another one which this run does not use."""
    has = dict(settings)
    value = has.get
    depends = {
        "final_learning_rate": value("learning_rate_decay") != "none",
        "subsampling_fraction": value("optimization_steps") is not None,
        "epochs": value("optimization_steps") is None,
        "minibatches": value("optimization_steps") is None,
        "baseline_learning_rate": value("baseline_optimizer") is not None,
        "initial_log_std": agent.kind == "gaussian",
        "initial_temperature": value("temperature") == "auto",
        "target_entropy": value("temperature") == "auto",
    }
    yield from (f"agent.{name}" for name, is_used in depends.items() if name in has and not is_used)
    memory = value("memory")
    if memory is not None and memory.type != "prioritized_replay":
        for name in ("priority_exponent", "importance_exponent", "final_importance_exponent"):
            if name in type(memory).model_fields:
                yield f"agent.memory.{name}"
