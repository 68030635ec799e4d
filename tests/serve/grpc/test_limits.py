"""The memory and calls that clients with and without the token can take from a gRPC port."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from processes import SECONDS, wait_until
from served import ServedProcess, one_policy, serving

from steppe.serve.grpc import messages, wire
from steppe.serve.limits import TrafficLimits

TOKEN = "a-token-of-enough-letters"
SHOWN = (("authorization", f"Bearer {TOKEN}"),)
EMPTY_INPUTS = b"\x2a\x00" * 7_900_000
"""15.8 MB that take 700 MB once they are parsed."""
MAX_GROWTH = 150
"""Allowed memory in MB: four copies of the message, as bytes in gRPC and in Python."""
INFER = f"/{messages.INFERENCE}/ModelInfer"
LIVE = f"/{messages.INFERENCE}/ServerLive"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    process = ServedProcess(one_policy(folder), folder / "state", grpc_port=0, token=TOKEN)
    try:
        yield process
        assert "Traceback" not in process.log
    finally:
        process.close()


@contextlib.contextmanager
def channel_to(served):
    # The server's limits are under test, not the client's.
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}", [("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def outcome(served, data, metadata=None, path=INFER, **options):
    """(code, sentence) of a call with these bytes."""
    with channel_to(served) as channel:
        try:
            channel.unary_unary(path)(data, metadata=metadata, timeout=SECONDS, **options)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def question(**fields):
    return messages.ModelInferRequest(
        model_name="pole",
        inputs=[{"name": "observation", "datatype": "FP32", "shape": [1, 4]}],
        raw_input_contents=[np.zeros((1, 4), "<f4").tobytes()],
        **fields,
    )


@pytest.mark.parametrize(
    ("metadata", "code"),
    [(None, grpc.StatusCode.UNAUTHENTICATED), (SHOWN, grpc.StatusCode.INVALID_ARGUMENT)],
    ids=["stranger", "client"],
)
def test_memory_stays_bounded_whatever_is_sent(served, metadata, code):
    assert outcome(served, question().SerializeToString(), SHOWN)[0] is grpc.StatusCode.OK
    with served.growing_less_than(MAX_GROWTH), ThreadPoolExecutor(4) as pool:
        codes = {each[0] for each in pool.map(lambda _: outcome(served, EMPTY_INPUTS, metadata), range(4))}
        assert codes == {code}


def test_a_message_without_a_token_is_not_even_received(served):
    with served.growing_less_than(12):
        for _ in range(8):
            assert outcome(served, EMPTY_INPUTS)[0] is grpc.StatusCode.UNAUTHENTICATED


def test_probes_ignore_their_messages(served):
    with served.growing_less_than(12):
        for data in (b"", b"\xff" * 100, EMPTY_INPUTS):
            assert outcome(served, data, path=LIVE)[0] is grpc.StatusCode.OK


def nested(field, body):
    """A length-delimited field of less than 2**28 bytes."""
    length, size = [], len(body)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([field << 3 | 2, *length, size]) + body


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x32\x00" * 3_000_000, id="outputs"),
        pytest.param(b"\x22\x00" * 3_000_000, id="parameters"),
        pytest.param(b"\x3a\x00" * 3_000_000, id="raw contents"),
        pytest.param(nested(5, b"\x22\x00" * 3_000_000), id="parameters of an input"),
        pytest.param(nested(5, nested(5, b"\x42\x00" * 3_000_000)), id="bytes of an input"),
        pytest.param(nested(5, b"\x18\x01" * 3_000_000), id="dimensions"),
        pytest.param(nested(5, nested(3, b"\x01" * 6_000_000)), id="packed dimensions"),
        pytest.param(nested(5, nested(5, nested(3, b"\x01" * 6_000_000))), id="small numbers"),
        pytest.param(b"\xf8\x07\x01" * 3_000_000, id="unknown fields"),
        pytest.param(b"\x0b" * 3_000_000, id="groups"),
        pytest.param(nested(1, b"a" * 6_000_000), id="name"),
    ],
)
def test_fields_are_counted_before_a_message_is_parsed(served, data):
    # A few copies of the message, not fifty.
    with served.growing_less_than(40):
        code, words = outcome(served, data, SHOWN)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert any(each in words for each in ("fields", "outside of raw_input_contents", "not a valid"))


PREDICT, REWARD = f"/{messages.SELDON}/Predict", f"/{messages.SELDON_MODEL}/SendFeedback"


def nested_lists(depth):
    """A google.protobuf.Value of lists in lists."""
    value = b""
    for _ in range(depth):
        value = nested(6, nested(1, value))
    return value


@pytest.mark.parametrize(
    ("path", "data"),
    [
        pytest.param(PREDICT, nested(3, nested(3, b"\x0a\x00" * 3_000_000)), id="empty values of an ndarray"),
        pytest.param(PREDICT, nested(2, b"\x12\x00" * 3_000_000), id="empty tags"),
        pytest.param(PREDICT, nested(3, b"\x0a\x00" * 3_000_000), id="empty names"),
        pytest.param(PREDICT, nested(3, nested(2, nested(1, b"\x01" * 6_000_000))), id="dimensions"),
        pytest.param(PREDICT, nested(3, nested(2, nested(2, b"\x00" * 6_000_000))), id="zeros"),
        pytest.param(PREDICT, nested(6, nested_lists(400) + b"\x0a\x00" * 60_000), id="lists in lists"),
        pytest.param(PREDICT, nested(6, nested_lists(120)), id="a small message of lists in lists"),
        pytest.param(REWARD, nested(4, nested(2, b"\x12\x00" * 3_000_000)), id="tags of a truth"),
        pytest.param(REWARD, nested(1, nested(3, nested(3, b"\x0a\x00" * 3_000_000))), id="values of a request"),
    ],
)
def test_messages_of_the_seldon_dialect_are_counted_too(served, path, data):
    with served.growing_less_than(40):
        code, words = outcome(served, data, SHOWN, path)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert any(each in words for each in ("fields", "more than 4194304 bytes", "not a valid"))
    if len(data) > wire.SMALL:
        with served.growing_less_than(12):
            assert outcome(served, data, path=path)[0] is grpc.StatusCode.UNAUTHENTICATED


def test_a_large_tensor_of_the_seldon_dialect_is_answered(served):
    message = messages.SeldonMessage(data={"tensor": {"shape": [8000, 4], "values": [0.5] * 32_000}})
    assert outcome(served, message.SerializeToString(), SHOWN, PREDICT)[0] is grpc.StatusCode.OK


def test_invalid_bytes_are_refused_in_one_sentence(served):
    rng = np.random.default_rng(1)
    for size in (1, 7, 100, 5000, 200_000):
        for _ in range(5):
            code, words = outcome(served, b"\x2a\xff" + rng.bytes(size), SHOWN)
            assert (code, words) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "the message is not a valid protobuf message of this method",
            ) or "fields" in words


def test_a_compressed_bomb_is_refused(served):
    with served.growing_less_than(MAX_GROWTH):
        code, _ = outcome(served, b"\0" * 200_000_000, SHOWN, compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_large_valid_messages_are_answered(served):
    rows = np.zeros((8000, 4), "<f4")
    raw = messages.ModelInferRequest(
        model_name="pole",
        inputs=[{"name": "observation", "datatype": "FP32", "shape": [8000, 4]}],
        raw_input_contents=[rows.tobytes()],
    )
    typed = messages.ModelInferRequest(
        model_name="pole",
        inputs=[
            {
                "name": "observation",
                "datatype": "FP32",
                "shape": [8000, 4],
                "contents": {"fp32_contents": rows.ravel().tolist()},
            }
        ],
        parameters={f"parameter {number}": {"string_param": "x"} for number in range(100)},
    )
    for request in (raw, typed):
        assert outcome(served, request.SerializeToString(), SHOWN)[0] is grpc.StatusCode.OK
    assert len(typed.SerializeToString()) > wire.SMALL


def test_metadata_has_a_limit(served):
    code, _ = outcome(served, b"", (*SHOWN, ("filler", "x" * 100_000)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def small(tmp_path):
    """A server with room for four calls, each of which must arrive within two seconds."""
    limits = TrafficLimits(concurrent=4, request_seconds=2.0)
    with serving(one_policy(tmp_path), tmp_path, limits, grpc_port=0) as served:
        yield served


@contextlib.contextmanager
def no_messages():
    """An iterator over messages that wait until the end of the test."""
    over = threading.Event()

    def wait():
        over.wait(SECONDS)
        yield b""

    try:
        yield wait
    finally:
        over.set()


def test_one_address_cannot_take_all_calls(small):
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(channel_to(small))
        wait = stack.enter_context(no_messages())
        for _ in range(2):
            stack.callback(channel.stream_unary(INFER).future(wait(), timeout=SECONDS).cancel)
        calls = wait_until(
            lambda: (
                (answer := outcome(small, question().SerializeToString()))[0] is grpc.StatusCode.UNAVAILABLE and answer
            ),
            "this address has no more calls",
        )
        assert "this address" in calls[1]
        # HTTP takes a place only for as long as an answer takes.
        assert small.infer().status == 200
    wait_until(
        lambda: outcome(small, question().SerializeToString())[0] is grpc.StatusCode.OK,
        "calls that ended are forgotten",
    )


def test_a_message_that_does_not_arrive_times_out(small):
    with channel_to(small) as channel, no_messages() as wait:
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(INFER)(wait(), timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.details() == "the message did not arrive within 2 s"
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(INFER)(iter(()), timeout=SECONDS)
        assert caught.value.details() == "the call ended without a message"


def test_connections_have_a_limit(tmp_path):
    limits = TrafficLimits(connections=8)
    with (
        serving(one_policy(tmp_path), tmp_path, limits, grpc_port=0) as served,
        contextlib.ExitStack() as stack,
    ):
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", served.grpc_port))) for _ in range(20)]

        def closed():
            count = 0
            for sock in sockets:
                sock.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    # A server's greeting has its settings.
                    count += sock.recv(1000) == b""
            return count

        assert wait_until(closed, "some are closed") >= 1
