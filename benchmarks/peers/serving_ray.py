"""Ray Serve's deployment for the policy's ONNX file: python serving_ray.py PORT MODEL, until it is killed."""

from __future__ import annotations

import sys
import threading

import numpy as np
import onnxruntime
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=128)
class OnnxPolicy:
    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)

    async def __call__(self, request: Request) -> dict[str, list[int]]:
        observation = np.array((await request.json())["observation"], np.float32)
        (action,) = self._session.run(["action"], {"observation": observation})
        return {"action": action.tolist()}


if __name__ == "__main__":
    ray.init(namespace="serve", include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1]), "access_log": False})
    serve.run(OnnxPolicy.bind(sys.argv[2]), route_prefix="/")
    print("ready", flush=True)
    threading.Event().wait()
