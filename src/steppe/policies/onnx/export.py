"""A policy as an ONNX model: observation [batch, *shape] -> the greedy action as environments take it, and outputs.

A recurrent policy, or one that stacks frames, also takes its state, such as "1_lstm/hidden" [batch, size] (zeros at the
beginning of an episode), and returns the next state under the same names after "next/". The names and shapes are those
of `Policy.initial_state`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.errors import MissingExtra, UserError
from steppe.files.durable import storing, write_atomically
from steppe.policies import heads
from steppe.policies.layers import LayerPlan, NetworkPlan, plan
from steppe.policies.onnx import layer_nodes, observation_nodes
from steppe.policies.onnx.model import OnnxGraph
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

if TYPE_CHECKING:
    from steppe.policies.policy import Policy

OPSET = 17
IR_VERSION = 8  # the version that came with opset 17, so that runtimes of its time load the file


def export(policy: Policy, path: Path) -> Path:
    """Writes the model to `path`, whose suffix is .onnx or none, and returns the path."""
    if path.suffix not in ("", ".onnx"):
        raise UserError(
            f'policies are exported as ONNX, not as "{path.suffix}"; call the file {path.with_suffix(".onnx")}'
        )
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("exporting to ONNX", "onnx") from error
    model = build(policy)
    onnx.checker.check_model(model, full_check=True)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, model.SerializeToString())
    return path


def build(policy: Policy) -> Any:
    """The model of a policy with a network; the input is float32, or int64 if observations are choices."""
    from onnx import TensorProto, helper

    description = policy.description
    if description.network is None or policy.kind in ("random", "constant"):
        raise UserError(f'a policy with a "{policy.kind}" head has no network to export to ONNX')
    if own := next((layer for layer in description.network.root if layer.type == "custom"), None):
        raise UserError(f'the layer "{own.module}" is a flax module, which cannot be exported to ONNX')
    network = plan(description.network, description.observation)
    graph = OnnxGraph()
    outputs = graph.call("Identity", _outputs(graph, policy, network), name="outputs")
    graph.call("Identity", _action(graph, policy, outputs), name="action")
    observation, action = description.shown, description.action
    input_type = TensorProto.FLOAT if isinstance(observation, Box) else TensorProto.INT64
    action_type = helper.np_dtype_to_tensor_dtype(np.dtype(action.dtype if isinstance(action, Box) else np.int64))

    def states(prefix: str) -> list[Any]:
        return [
            helper.make_tensor_value_info(f"{prefix}{name}", TensorProto.FLOAT, ["batch", *state.shape])
            for name, state in policy.initial_state().items()
        ]

    model_graph = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", input_type, ["batch", *observation.shape]), *states("")],
        [
            helper.make_tensor_value_info("action", action_type, ["batch", *action.shape]),
            helper.make_tensor_value_info(
                "outputs", TensorProto.FLOAT, ["batch", heads.outputs_size(policy.kind, action)]
            ),
            *states("next/"),
        ],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(model_graph, producer_name="steppe", opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {"agent": description.agent, "environment": description.environment})
    return model


def _outputs(graph: OnnxGraph, policy: Policy, network: NetworkPlan) -> str:
    """Normalisation, encoding, layers and head; returns the name of [batch, outputs]."""
    description, tensors = policy.description, policy.tensors
    seen = "observation"
    if description.preprocessing is not None:
        seen = observation_nodes.preprocess(graph, description.preprocessing, seen)
    if description.normalizer is not None:
        clip = np.float32(description.normalizer["clip"])
        deviation = np.sqrt(tensors["normalizer/var"] + np.float32(1e-8))
        seen = graph.call("Div", graph.call("Sub", seen, tensors["normalizer/mean"]), deviation)
        seen = graph.call("Clip", seen, -clip, clip)
    is_normalized = description.normalizer is not None

    def apply(step: LayerPlan, x: str) -> str:
        params = {name: tensors[f"torso/{step.name}/{name}"] for name, _ in step.parameters}
        return layer_nodes.apply(graph, step, params, x)

    x = network.run(
        lambda encoding: observation_nodes.encode(graph, encoding, seen, is_normalized),
        lambda step, values: layer_nodes.join(graph, step, values),
        apply,
    )
    features = graph.call("Reshape", x, np.array([-1, network.features]))

    def dense(part: str) -> str:
        return graph.call("Gemm", features, tensors[f"head/{part}kernel"], tensors[f"head/{part}bias"])

    if "head/kernel" in tensors:
        return dense("")
    advantage = dense("advantage/")
    space = description.action
    choices = space.nvec if isinstance(space, MultiDiscrete) else (heads.outputs_size(policy.kind, space),)
    centred = []
    for size, end in zip(choices, np.cumsum(choices), strict=True):
        part = graph.cut(advantage, end - size, end)
        centred.append(graph.call("Sub", part, graph.call("ReduceMean", part, axes=[-1], keepdims=1)))
    return graph.call("Add", dense("value/"), graph.call("Concat", *centred, axis=-1))


def _action(graph: OnnxGraph, policy: Policy, outputs: str) -> str:
    """The greedy action, as in `heads.greedy` and `heads.postprocess`."""
    from onnx import TensorProto, helper

    space = policy.description.action
    if policy.kind == "bernoulli":
        chosen = graph.call("Cast", graph.call("Greater", outputs, np.float32(0.0)), to=TensorProto.INT64)
        if isinstance(space, MultiDiscrete):
            return chosen
        assert isinstance(space, Discrete)
        return graph.call("Add", graph.call("Reshape", chosen, np.array([-1])), np.int64(space.start))
    if isinstance(space, Discrete):
        return graph.call("Add", graph.call("ArgMax", outputs, axis=-1, keepdims=0), np.int64(space.start))
    if isinstance(space, MultiDiscrete):
        return graph.argmax_each(outputs, space.nvec)
    low, high = (bound.ravel() for bound in space.bounds())
    action = _continuous(graph, policy.kind, outputs, space.size)
    if policy.kind in heads.STRETCHED:
        action = graph.call("Add", low, graph.call("Mul", graph.call("Add", action, np.float32(1)), (high - low) / 2))
    action = graph.call("Min", graph.call("Max", action, low), high)
    dtype = np.dtype(space.dtype)
    action = graph.call("Round", action) if np.issubdtype(dtype, np.integer) else action
    action = graph.call("Cast", action, to=helper.np_dtype_to_tensor_dtype(dtype))
    return graph.call("Reshape", action, np.array([-1, *space.shape]))


def _continuous(graph: OnnxGraph, kind: str, outputs: str, size: int) -> str:
    """The greedy continuous action [batch, size], within +-1 if its kind is scaled to the bounds."""

    def cut(x: str, start: int) -> str:
        return graph.cut(x, start, start + size)

    match kind:
        case "deterministic":
            return graph.call("Tanh", outputs)
        case "squashed_gaussian":
            return graph.call("Tanh", cut(outputs, 0))
        case "beta":
            positive = graph.call("Add", graph.call("Softplus", outputs), np.float32(1))
            alpha, beta = cut(positive, 0), cut(positive, size)
            share = graph.call("Div", alpha, graph.call("Add", alpha, beta))
            return graph.call("Sub", graph.call("Mul", share, np.float32(2)), np.float32(1))
    return outputs
