"""Every malformed question gets a 4xx status with one sentence, never 500."""

from __future__ import annotations

import itertools
import json

import pytest

GOOD = b"[0,0,0,0]"
DEEP = b"[" * 1000 + b"]" * 1000
ODD = {
    "null": b"null",
    "true": b"true",
    "text": b'"x"',
    "object": b'{"a":1}',
    "a number": b"1",
    "beyond floats": b"[1e400,0,0,0]",
    "beyond 32 bits": b"[1e300,0,0,0]",
    "beyond 64 bits in three numbers": b"[36893488147419103232,0,0]",
    "not a number": b"[NaN,0,0,0]",
    "lone surrogate": b'["\\ud800",0,0,0]',
    "broken UTF-8": b'["\xff\xfe",0,0,0]',
    "texts": b'["0","0","0","0"]',
    "nothing": b"[]",
    "empty rows": b"[[],[],[],[]]",
    "nulls": b"[null,0,0,0]",
    "uneven": b"[[0],[0,0,0]]",
    "mixed": b"[0,[0],0,0]",
    "objects": b"[{},{},{},{}]",
    "deep": DEEP,
    "deeper": DEEP.replace(b"[]", b"[" * 2000 + b"]" * 2000),
    "cut off": b"[0,0",
}
SHAPES = (b"[0,4]", b"[0,1099511627776,1099511627776]", b"[-1,4]", b"[-1,-4]", b"[1e2,4]", b"[1.5,4]", b"[4,true]")
SHAPES += (b'["1",4]', b"[[1],4]", b"null", b"4", b"{}", b"[" + b"1," * 70 + b"4]", b"[18446744073709551616,4]", DEEP)


def v2(data=GOOD, shape=b"[1,4]", rest=b""):
    tensor = b'{"name":"observation","shape":%b,"datatype":"FP32","data":%b}' % (shape, data)
    return "/v2/models/pole/infer", b'{"inputs":[%b]%b}' % (tensor, rest)


def seldon(data, rest=b""):
    return "/api/v1.0/predictions", b'{"data":%b%b}' % (data, rest)


def tensor(values, shape=b"[1,4]"):
    return seldon(b'{"tensor":{"shape":%b,"values":%b}}' % (shape, values))


QUESTIONS = {
    **{f"data: {name}": v2(odd) for name, odd in ODD.items()},
    **{f"shape: {shape[:40]!r}": v2(shape=shape) for shape in SHAPES},
    **{f"no data, shape: {shape[:40]!r}": v2(b"[]", shape) for shape in SHAPES},
    **{f"{name}: {odd}": v2(rest=b',"%b":%b' % (name.encode(), ODD[odd]))
       for name, odd in itertools.product(("parameters", "outputs", "id"), ("true", "objects", "deep", "cut off"))},
    **{f"seldon: {name}": seldon(b'{"ndarray":%b}' % odd) for name, odd in ODD.items()},
    **{f"seldon tensor: {name}": tensor(odd) for name, odd in ODD.items()},
    **{f"seldon shape: {shape[:40]!r}": tensor(GOOD, shape) for shape in SHAPES},
    **{f"seldon, no values, shape: {shape[:40]!r}": tensor(b"[]", shape) for shape in SHAPES},
    "seldon: deep tags": seldon(b'{"ndarray":[[0,0,0,0]]}', b',"meta":{"tags":{"a":%b}}' % DEEP),
    "the last of two inputs of one name": ("/v2/models/pole/infer", v2()[1][:-1] + b',"inputs":[]}'),
    **{f"truth: {name}": ("/v2/models/pole/feedback", b'{"id":"nobody","reward":1,"truth":%b}' % odd)
       for name, odd in ODD.items()},
    **{f"reward: {name}": ("/v2/models/pole/feedback", b'{"id":"nobody","reward":%b}' % odd)
       for name, odd in ODD.items() if name != "a number"},
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_malformed_question_is_a_client_error(one, name):
    path, body = QUESTIONS[name]
    reply = one.post(path, body)
    assert 400 <= reply.status < 500, reply.body
    said = json.loads(reply.body)
    assert said["status"]["info"] if path.startswith("/api") else said["error"]


@pytest.mark.parametrize("shape", [[0, 1 << 40, 1 << 40], [-1, 4], [1 << 40, 4], [1] * 70, None, "x", [[1], 4], [0, 4]])
@pytest.mark.parametrize("size", [0, 16, -1, 1 << 40, None, "16"])
def test_a_malformed_binary_question_is_a_client_error(one, shape, size):
    odd = {"name": "observation", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [odd]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    assert 400 <= one.post("/v2/models/pole/infer", head + bytes(16), **headers).status < 500
