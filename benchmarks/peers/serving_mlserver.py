"""A runtime of MLServer for the policy's ONNX file, since MLServer has none for ONNX."""

from __future__ import annotations

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxPolicy(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        observation = NumpyCodec.decode_input(payload.inputs[0])
        (action,) = self._session.run(["action"], {"observation": observation})
        output = NumpyCodec.encode_output("action", action)
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])
