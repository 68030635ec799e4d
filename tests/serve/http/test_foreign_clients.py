"""Unmodified clients of both protocols work with the endpoint."""

from __future__ import annotations

import foreign
import numpy as np
from served import router, serving

from policies import make_policy

POLICY = make_policy()
ROWS = [[0.1, -0.2, 0.3, 0.0], [1.0, 0.0, -1.0, 2.0]]
TRITON = """
import json, sys
import numpy as np
import tritonclient.http as triton
client = triton.InferenceServerClient(sys.argv[1])
rows = np.array(json.loads(sys.argv[2]), np.float32)
said = {"live": client.is_server_live(), "ready": client.is_server_ready(), "model": client.is_model_ready("pole")}
said["server"] = client.get_server_metadata()["name"]
said["inputs"] = client.get_model_metadata("pole")["inputs"]
said["index"] = [each["name"] for each in client.get_model_repository_index()]
said["actions"], said["policies"] = [], []
ways = [(True, True, None), (False, False, None), (True, False, None), (False, True, "gzip")]
for binary_in, binary_out, squeeze in ways:
    given = triton.InferInput("observation", rows.shape, "FP32")
    given.set_data_from_numpy(rows, binary_data=binary_in)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("action", "outputs")]
    result = client.infer(
        "pole", [given], outputs=wanted, request_id="mine", sequence_id="episode", sequence_start=not said["actions"],
        request_compression_algorithm=squeeze, response_compression_algorithm=squeeze,
    )
    said["actions"].append(result.as_numpy("action").tolist())
    said["outputs"] = result.as_numpy("outputs").tolist()
    said["policies"].append(result.get_response()["parameters"]["policy"])
    said["id"] = result.get_response()["id"]
given = triton.InferInput("observation", rows.shape, "FP32")
given.set_data_from_numpy(rows)
bare = client.infer("pole", [given])
said["bare"] = bare.as_numpy("action").tolist()
said["bare_outputs"] = bare.as_numpy("outputs").tolist()
try:
    client.infer("pole", [given], outputs=[triton.InferRequestedOutput("outputs", class_count=2)])
except triton.InferenceServerException as error:
    said["classes"] = error.message()
client.unload_model("pole")
said["unloaded"] = client.is_model_ready("pole")
client.load_model("pole")
said["loaded"] = client.is_model_ready("pole")
try:
    wrong = triton.InferInput("obs", rows.shape, "FP32")
    wrong.set_data_from_numpy(rows)
    client.infer("pole", [wrong])
except triton.InferenceServerException as error:
    said["error"] = error.message()
print(json.dumps(said))
"""
SELDON = """
import json, sys
import numpy as np
from seldon_core.seldon_client import SeldonClient
rows = np.array(json.loads(sys.argv[2]))
said = {"actions": [], "feedback": []}
for gateway, kind in (("seldon", "tensor"), ("seldon", "ndarray"), ("ambassador", "tensor")):
    client = SeldonClient(
        gateway=gateway, gateway_endpoint=sys.argv[1], transport="rest", deployment_name="pole", namespace="default",
        client_return_type="proto"
    )
    answer = client.predict(data=rows, payload_type=kind, names=["a", "b", "c", "d"], meta={"sequence_id": "s1"})
    assert answer.success, answer
    data = answer.response.data
    said["actions"].append(list(data.tensor.values) if kind == "tensor" else [row[0] for row in data.ndarray])
    said.setdefault("routes", []).append(answer.response.meta.routing["pole"])
    said["puid"] = answer.response.meta.puid
    for _ in range(2):
        told = client.feedback(answer.request, answer.response, reward=0.9)
        assert told.success, told
        said["feedback"].append(told.response.meta.tags["applied"].bool_value)
print(json.dumps(said))
"""


def test_the_triton_client_works(tmp_path):
    with serving(router(tmp_path), tmp_path) as served:
        said = foreign.run("tritonclient", TRITON, f"127.0.0.1:{served.port}", ROWS)
    rows = np.array(ROWS, np.float32)
    assert said["live"] is said["ready"] is said["model"] is True
    assert said["server"] == "steppe"
    assert said["inputs"] == [{"name": "observation", "datatype": "FP32", "shape": [-1, 4]}]
    assert said["index"] == ["pole", "a", "b"]
    assert said["actions"] == [POLICY.act(rows).tolist()] * 4
    assert said["bare"] == POLICY.act(rows).tolist()
    np.testing.assert_allclose(said["bare_outputs"], POLICY.outputs(rows), rtol=1e-6)
    assert "class_count" in said["classes"]
    assert (said["unloaded"], said["loaded"]) == (False, True)
    np.testing.assert_allclose(said["outputs"], POLICY.outputs(rows), rtol=1e-6)
    assert len(set(said["policies"])) == 1
    assert said["id"] == "mine"
    assert said["error"] == 'there is no input "obs"; the input is "observation"'


def test_the_seldon_client_works(tmp_path):
    with serving(router(tmp_path), tmp_path) as served:
        said = foreign.run("seldon_core", SELDON, f"127.0.0.1:{served.port}", ROWS)
    expected = POLICY.act(np.array(ROWS, np.float32)).tolist()
    assert said["actions"] == [expected] * 3
    assert len(set(said["routes"])) == 1
    assert said["feedback"] == [True, False] * 3
    assert said["puid"]
