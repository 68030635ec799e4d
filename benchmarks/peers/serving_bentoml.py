"""BentoML's service for the policy's ONNX file."""

from __future__ import annotations

import os

import bentoml
import numpy as np
import onnxruntime


@bentoml.service(workers=1)
class OnnxPolicy:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(os.environ["POLICY_ONNX"], options)

    @bentoml.api
    def infer(self, observation: list[list[float]]) -> list[int]:
        (action,) = self._session.run(["action"], {"observation": np.array(observation, np.float32)})
        return action.tolist()
