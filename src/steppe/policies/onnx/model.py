"""The nodes and constants of an ONNX model under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class OnnxGraph:
    """Collects nodes and constants under fresh names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def call(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Adds a node and returns its output's name; arrays among the inputs become constants."""
        from onnx import helper

        name = name or f"{operator.lower()}_{len(self.nodes)}"
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def cut(self, x: str, start: int, end: int) -> str:
        """x[..., start:end]."""
        return self.call("Slice", x, np.array([start]), np.array([end]), np.array([-1]))

    def argmax_each(self, x: str, sizes: Sequence[int]) -> str:
        """The index of the largest of each run of `sizes` columns: [batch, sum(sizes)] -> [batch, len(sizes)]."""
        pieces = [self.cut(x, end - n, end) for n, end in zip(sizes, np.cumsum(sizes), strict=True)]
        chosen = (self.call("ArgMax", piece, axis=-1, keepdims=1) for piece in pieces)
        return self.call("Concat", *chosen, axis=1)

    def _constant(self, value: Any) -> str:
        from onnx import numpy_helper

        array = np.asarray(value)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name
