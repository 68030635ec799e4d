"""Small requests that would take huge memory: `steppe serve` refuses each of them and goes on."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import grpc
import pytest
from processes import SECONDS
from served import Served, question, save_policy

from steppe.serve.grpc import messages

MAX_MEMORY = 512 << 20
MEGABYTE = 1_000_000
INFER = "/v2/models/pole/infer"
REWARD = "/v2/models/pole/feedback"
SELDON = "/api/v1.0/predictions"
SELDON_REWARD = "/api/v1.0/feedback"


class Limited(Served):
    """`steppe serve` in a process whose memory is limited to MOST_MEMORY."""

    def __init__(self, policy: Path) -> None:
        words = ["serve", str(policy), "--name", "pole", "--port", "0", "--grpc-port", "0"]
        self.process = subprocess.Popen(
            ["prlimit", f"--data={MAX_MEMORY}", sys.executable, "-m", "steppe", *words],
            cwd=policy.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[^ :]*:(\d+) \(gRPC at port (\d+)\)", line)
        assert found is not None, line
        super().__init__(int(found[1]))
        self.grpc_port = int(found[2])

    @property
    def peak(self) -> int:
        """The peak memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    limited = Limited(save_policy(tmp_path_factory.mktemp("bombs") / "pole"))
    try:
        yield limited
    finally:
        limited.close()


class Bomb(NamedTuple):
    """One request, whose body is made when it is sent."""

    path: str
    body: Callable[[], bytes]
    headers: Mapping[str, str] = MappingProxyType({})


Text = str | Callable[[], str]
"""A JSON body, whose long parts are made when it is sent."""


def made(text: Text) -> str:
    return text if isinstance(text, str) else text()


def v2(data: Text, shape: Text = "[1,4]", **more: Text) -> Bomb:
    """A question of the Open Inference Protocol with these texts for its data, its shape and further fields."""

    def body() -> bytes:
        tensor = f'{{"name":"observation","shape":{made(shape)},"datatype":"FP32","data":{made(data)}}}'
        rest = "".join([f',"{name}":{made(text)}' for name, text in more.items()])
        return f'{{"inputs":[{tensor}]{rest}}}'.encode()

    return Bomb(INFER, body)


def seldon(data: Text, meta: Text = "{}") -> Bomb:
    """A question of the Seldon dialect with these texts for its data and its meta."""
    return Bomb(SELDON, lambda: f'{{"meta":{made(meta)},"data":{made(data)}}}'.encode())


def binary(shape: list[Any], size: int = 0, datatype: str = "FP32") -> Bomb:
    """A question whose tensor comes as `size` bytes after the JSON."""
    tensor = {"name": "observation", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return Bomb(INFER, lambda: head + bytes(size), {"Inference-Header-Content-Length": str(len(head))})


def binary_head(head: Callable[[], bytes]) -> Bomb:
    """A question of the binary extension that consists of this JSON only."""
    return Bomb(INFER, head, {"Inference-Header-Content-Length": str(len(head()))})


def zipped(bomb: Bomb) -> Bomb:
    """The same, compressed."""
    return bomb._replace(
        body=lambda: gzip.compress(bomb.body(), 1), headers={**bomb.headers, "Content-Encoding": "gzip"}
    )


def many(piece: str, megabytes: float) -> Callable[[], str]:
    """A JSON list of one value many times."""
    return lambda: f"[{','.join([piece] * int(megabytes * MEGABYTE / (len(piece) + 1)))}]"


def keys(count: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(count)) + "}"


def texts(longest: int, count: int) -> Callable[[], str]:
    """One long text, then many short ones: NumPy would make each as wide as the longest."""
    return lambda: f'["{"x" * longest}"' + ',""' * count + "]"


def deep(depth: int, inside: str = "") -> str:
    return "[" * depth + inside + "]" * depth


BOMBS = {
    "a million texts": v2(texts(500, 1_000_000)),
    "texts that would take 48 TB": v2(texts(12 * MEGABYTE, 300_000)),
    "texts in their shape": v2(texts(500, 3_999), "[1000,4]"),
    "texts in rows": v2(lambda: f'[["{"x" * MEGABYTE}"],{",".join(["[0]"] * 300_000)}]'),
    "empty lists": v2(many("[]", 15)),
    "empty lists as they are": Bomb(INFER, lambda: many("[]", 15)().encode()),
    "empty objects": v2(many("{}", 15)),
    "small objects": v2(many('{"":0}', 15)),
    "lists in lists": v2(many("[[[]]]", 15)),
    "uneven lists": v2(many("[0],[0,0]", 6), "[1000000,1]"),
    "nested a thousand deep": v2(deep(1000, "0")),
    "nested a million deep": v2(deep(MEGABYTE, "0")),
    "nested objects": v2('{"a":' * 100_000 + "0" + "}" * 100_000),
    "many zeros": v2(many("0", 15), "[1875000,4]"),
    "many floats": v2(many("1e3", 15), "[937500,4]"),
    "many nulls": v2(many("null", 15)),
    "many keys": Bomb(INFER, lambda: keys(1_400_000).encode()),
    "many outputs": v2("[0,0,0,0]", outputs=many("{}", 1)),
    "many inputs": Bomb(INFER, lambda: f'{{"inputs":{many("{}", 3)()}}}'.encode()),
    "a long text": v2(lambda: f'"{"x" * 15 * MEGABYTE}"'),
    "a long text in wide letters": v2(lambda: f'["{"x" * 15 * MEGABYTE}\N{GRINNING FACE}"]'),
    "a long name": Bomb(INFER, lambda: f'{{"inputs":[{{"name":"{"x" * 15 * MEGABYTE}"}}]}}'.encode()),
    "a long id": v2("[0,0,0,0]", id=lambda: f'"{"x" * 15 * MEGABYTE}"'),
    "a long field": Bomb(INFER, lambda: f'{{"{"x" * 15 * MEGABYTE}":0}}'.encode()),
    "a number of 100,000 digits": v2(f"[{'9' * 100_000},0,0,0]"),
    "a shape of 100,000 digits": v2("[0,0,0,0]", f"[1,{'9' * 100_000}]"),
    "a huge shape with a zero": v2("[]", "[0,1099511627776,1099511627776]"),
    "a huge shape": v2("[0,0,0,0]", "[1099511627776,4]"),
    "many dimensions": v2(many("0", 2), many("1", 1)),
    "too many rows": v2(many("0", 1), "[125000,4]"),
    "binary: a huge shape with a zero": binary([0, 1 << 40, 1 << 40]),
    "binary: a huge shape": binary([1 << 40, 4]),
    "binary: too many rows": binary([937_500, 4], 15 * MEGABYTE),
    "binary: too many rows of one byte": binary([3_750_000, 4], 15 * MEGABYTE, "BOOL"),
    "binary: empty lists": binary_head(lambda: many("[]", 15)().encode()),
    "seldon: a million texts": seldon(lambda: f'{{"ndarray":{texts(500, 1_000_000)()}}}'),
    "seldon: texts that would take 48 TB": seldon(lambda: f'{{"ndarray":{texts(12 * MEGABYTE, 300_000)()}}}'),
    "seldon: texts in a tensor": seldon(lambda: f'{{"tensor":{{"shape":[1,4],"values":{texts(500, 1_000_000)()}}}}}'),
    "seldon: empty lists": seldon(lambda: f'{{"ndarray":{many("[]", 15)()}}}'),
    "seldon: too many rows": seldon(lambda: f'{{"ndarray":{many("[0,0,0,0]", 1)()}}}'),
    "seldon: uneven rows": seldon(lambda: f'{{"ndarray":{many("[0],[0,0]", 3)()}}}'),
    "seldon: deep rows": seldon(f'{{"ndarray":{deep(1000, "0")}}}'),
    "seldon: a huge shape with a zero": seldon('{"tensor":{"shape":[0,1099511627776,1099511627776],"values":[]}}'),
    "seldon: deep tags": seldon('{"ndarray":[[0,0,0,0]]}', f'{{"tags":{{"a":{deep(900)}}}}}'),
    "seldon: many tags": seldon('{"ndarray":[[0,0,0,0]]}', lambda: f'{{"tags":{keys(200_000)}}}'),
    "reward: deep truth": Bomb(REWARD, lambda: f'{{"id":"x","reward":1,"truth":{deep(1000)}}}'.encode()),
    "reward: long truth": Bomb(REWARD, lambda: f'{{"id":"x","reward":1,"truth":"{"x" * 15 * MEGABYTE}"}}'.encode()),
    "reward: large truth": Bomb(REWARD, lambda: f'{{"id":"x","reward":1,"truth":{many("1", 2)()}}}'.encode()),
    "seldon reward: deep truth": Bomb(SELDON_REWARD, lambda: f'{{"reward":1,"truth":{deep(1000)}}}'.encode()),
    "zipped: zeros": zipped(Bomb(INFER, lambda: bytes(400 * MEGABYTE))),
    "zipped: empty lists": zipped(v2(many("[]", 15))),
    "zipped: a million texts": zipped(v2(texts(500, 1_000_000))),
}
"""Each must be answered with a status from 400 to 499."""


def grpc_question(raw: int = 16, **tensor: Any) -> bytes:
    """A gRPC question with these fields in its tensor, and `raw` bytes beside it."""
    fields = {"name": "observation", "datatype": "FP32", "shape": [1, 4], **tensor}
    contents = [] if "contents" in tensor else [bytes(raw)]
    return messages.ModelInferRequest(
        model_name="pole", inputs=[fields], raw_input_contents=contents
    ).SerializeToString()


def grpc_reward(truth: str) -> bytes:
    return messages.FeedbackRequest(id="x", reward=1, truth=truth).SerializeToString()


GRPC_INFER = f"/{messages.INFERENCE}/ModelInfer"
GRPC_REWARD = f"/{messages.FEEDBACK}/SendFeedback"
GRPC_BOMBS = {
    "empty inputs": Bomb(GRPC_INFER, lambda: b"\x2a\x00" * 7_900_000),
    "empty outputs": Bomb(GRPC_INFER, lambda: b"\x32\x00" * 7_900_000),
    "empty parameters": Bomb(GRPC_INFER, lambda: b"\x22\x00" * 7_900_000),
    "empty raw contents": Bomb(GRPC_INFER, lambda: b"\x3a\x00" * 7_900_000),
    "a huge shape with a zero": Bomb(GRPC_INFER, lambda: grpc_question(0, shape=[0, 1 << 40, 1 << 40])),
    "a huge shape": Bomb(GRPC_INFER, lambda: grpc_question(shape=[1 << 40, 4])),
    "many dimensions": Bomb(GRPC_INFER, lambda: grpc_question(4, shape=[1] * MEGABYTE)),
    "too many rows": Bomb(GRPC_INFER, lambda: grpc_question(15 * MEGABYTE, shape=[937_500, 4])),
    "too many rows of one byte": Bomb(
        GRPC_INFER, lambda: grpc_question(15 * MEGABYTE, shape=[3_750_000, 4], datatype="BOOL")
    ),
    "too many numbers": Bomb(GRPC_INFER, lambda: grpc_question(contents={"fp32_contents": [0.0] * 3_000_000})),
    "empty texts": Bomb(
        GRPC_INFER, lambda: grpc_question(datatype="BYTES", contents={"bytes_contents": [b""] * 3_000_000})
    ),
    "a long name": Bomb(GRPC_INFER, lambda: grpc_question(name="x" * 15 * MEGABYTE)),
    "nothing that can be read": Bomb(GRPC_INFER, lambda: b"\xff" * 15 * MEGABYTE),
    "more than a message may have": Bomb(GRPC_INFER, lambda: grpc_question(100 * MEGABYTE)),
    "reward: a long truth": Bomb(GRPC_REWARD, lambda: grpc_reward(f'"{"x" * 15 * MEGABYTE}"')),
    "reward: a deep truth": Bomb(GRPC_REWARD, lambda: grpc_reward(deep(1000))),
    "reward: a large truth": Bomb(GRPC_REWARD, lambda: grpc_reward(many("1", 2)())),
}
"""Each must be answered with a code for a client error."""
CLIENT_IS_WRONG = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_the_endpoint_goes_on(served, name):
    bomb = BOMBS[name]
    reply = served.post(bomb.path, bomb.body(), **bomb.headers)
    assert 400 <= reply.status < 500, reply.body[:500]
    assert len(reply.body) < 1000
    assert served.infer().status == 200
    assert served.peak < MAX_MEMORY


@pytest.mark.parametrize("name", GRPC_BOMBS)
def test_a_bomb_by_grpc_is_refused_and_the_endpoint_goes_on(served, name):
    bomb = GRPC_BOMBS[name]
    # The server's limits are under test, not the client's.
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}", [("grpc.max_send_message_length", -1)]) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(bomb.path)(bomb.body(), timeout=SECONDS)
        assert raised.value.code() in CLIENT_IS_WRONG, raised.value
        assert len(raised.value.details()) < 1000
        assert channel.unary_unary(GRPC_INFER)(grpc_question(), timeout=SECONDS)
    assert served.infer().status == 200
    assert served.peak < MAX_MEMORY


def test_refused_messages_do_not_stay_in_memory(served):
    """Together they have more bytes than the server may have memory."""
    bomb = GRPC_BOMBS["a long name"]
    body = bomb.body()
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}", [("grpc.max_send_message_length", -1)]) as channel:
        for _ in range(2 * MAX_MEMORY // len(body)):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(bomb.path)(body, timeout=SECONDS)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert served.infer().status == 200


def test_a_large_valid_question_is_answered(served):
    shape = (10_000, 4)
    reply = served.post(INFER, question([0.5] * 40_000, shape))
    assert reply.status == 200
    assert reply.json["outputs"][0]["shape"] == [10_000]
    rows = {"data": {"ndarray": [[0.5] * 4] * 10_000}}
    assert len(served.post(SELDON, rows).json["data"]["ndarray"]) == 10_000
    assert served.post(INFER, question([0.5] * 40_004, (10_001, 4))).status == 400
    assert served.peak < MAX_MEMORY
