from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steppe.net import messagepack
from steppe.net.messagepack import Malformed
from steppe.net.protocol import (
    DTYPES,
    Channel,
    ChannelClosed,
    TooSlow,
    read_array,
    read_count,
    read_space,
    read_text,
    to_wire,
)
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, to_json

NUMBERS = st.sampled_from(["bool", "uint8", "int32", "float32"]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    here = socket.create_connection(listener.getsockname())
    there, _ = listener.accept()
    listener.close()
    with here, there:
        yield Channel(here), there


@given(NUMBERS)
def test_an_array_comes_back_bit_for_bit(values: np.ndarray) -> None:
    out = np.empty(values.shape, values.dtype)
    read_array(msgpack.unpackb(msgpack.packb({"op": "x", "a": to_wire(values)})), "a", out)
    assert out.tobytes() == values.tobytes()


def test_arrays_are_little_endian_in_row_order_on_the_wire() -> None:
    turned = np.array([[1, 256], [-1, 2]], np.int32).T
    assert to_wire(turned)["data"] == struct.pack("<4i", 1, -1, 256, 2)
    assert to_wire(np.array(1.5, np.float32)) == {"dtype": "float32", "shape": (), "data": struct.pack("<f", 1.5)}
    assert to_wire(np.array([True, False])) == {"dtype": "bool", "shape": (2,), "data": b"\1\0"}
    with pytest.raises(KeyError):
        to_wire(np.array([object()]))
    assert set(DTYPES) == {"bool", "uint8", "int32", "float32"}


def test_any_nonzero_byte_is_true() -> None:
    out = np.zeros(3, bool)
    read_array({"op": "x", "a": {"dtype": "bool", "shape": [3], "data": b"\0\1\xff"}}, "a", out)
    assert out.tobytes() == b"\0\1\1"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, 'sent "x" without the array "a"'),
        ([1.0, 2.0], 'sent "x" without the array "a"'),
        ({}, 'sent "a" as None None where float32 [2] was agreed on'),
        ({"dtype": "float64", "shape": [2], "data": bytes(16)}, "as 'float64' [2] where float32 [2]"),
        ({"dtype": "object", "shape": [2], "data": bytes(16)}, "as 'object' [2] where float32 [2]"),
        ({"dtype": "float32", "shape": [1], "data": bytes(4)}, "as 'float32' [1] where float32 [2]"),
        ({"dtype": "float32", "shape": [-1], "data": bytes(8)}, "as 'float32' [-1] where float32 [2]"),
        ({"dtype": "float32", "shape": [2], "data": bytes(7)}, "with other than the 8 bytes that its shape takes"),
        ({"dtype": "float32", "shape": [2], "data": "12345678"}, "with other than the 8 bytes"),
    ],
)
def test_an_array_other_than_agreed_on_is_refused(value: object, sentence: str) -> None:
    out = np.ones(2, np.float32)
    with pytest.raises(Malformed) as caught:
        read_array({"op": "x", "a": value}, "a", out)
    assert sentence in str(caught.value)
    assert out.tolist() == [1, 1]


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, -1, None])
def test_a_count_must_be_a_whole_number_from_one_on(value: object) -> None:
    with pytest.raises(Malformed, match="where a whole number from 1 on belongs"):
        read_count({"op": "x", "n": value}, "n")


def test_text_from_outside_is_one_printable_line() -> None:
    assert read_text({"op": "x", "t": "a\x1b[31m\nb"}, "t") == "a [31m b"
    assert read_text({"op": "x", "t": "abc"}, "t", longest=2) == "ab"


@pytest.mark.parametrize(
    "space",
    [
        Box((3, 2), (-1.0,), (1.0, 2.0, 3.0, 4.0, 5.0, float("inf"))),
        Box((8, 8, 3), (0.0,), (255.0,), "uint8"),
        Discrete(4, -2),
        MultiDiscrete((2, 3)),
    ],
)
def test_a_space_survives_the_wire(space: Box | Discrete | MultiDiscrete) -> None:
    assert read_space(msgpack.unpackb(msgpack.packb({"op": "x", "s": to_json(space)})), "s") == space


@pytest.mark.parametrize(
    "space",
    [
        None,
        {},
        {"type": "text"},
        {"type": "discrete", "n": 0, "start": 0},
        {"type": "discrete", "n": "many", "start": 0},
        {"type": "multi_discrete", "nvec": [2, -1]},
        {"type": "box", "shape": [2], "low": [None], "high": [None], "dtype": "object"},
        {"type": "box", "shape": [2], "low": [None], "high": [None], "dtype": "int32"},
        {"type": "box", "shape": [2], "low": [None], "high": [1, 2, 3], "dtype": "float32"},
        {"type": "box", "shape": [2.0], "low": [None], "high": [None], "dtype": "float32"},
        {"type": "box", "shape": [0], "low": [None], "high": [None], "dtype": "float32"},
        {"type": "box", "shape": [2**20, 2**20], "low": [None], "high": [None], "dtype": "uint8"},
        {"type": "box", "shape": "ab", "low": [None], "high": [None], "dtype": "float32"},
        {
            "type": "box",
            "shape": [2],
            "low": [None],
            "high": [None],
            "dtype": "float32",
            "parts": [{"name": "a", "start": 1, "space": {"type": "discrete", "n": 2, "start": 0}}],
        },
    ],
)
def test_an_invalid_space_is_refused(space: object) -> None:
    with pytest.raises(Malformed, match="which is no space"):
        read_space({"op": "x", "observation_space": space}, "observation_space")


def test_a_box_of_actions_may_hold_whole_numbers() -> None:
    space = {"type": "box", "shape": [2], "low": [0.0], "high": [9.0], "dtype": "int64"}
    assert read_space({"op": "x", "action_space": space}, "action_space") == Box((2,), (0.0,), (9.0,), "int64")


def test_messages_cross_whole_in_whatever_pieces_they_come(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    message = {"op": "step", "data": bytes(range(256)) * 100}
    body = msgpack.packb(message)
    framed = struct.pack(">I", len(body)) + body

    def send() -> None:
        for start in range(0, len(framed), 999):
            there.sendall(framed[start : start + 999])

    thread = threading.Thread(target=send)
    thread.start()
    assert channel.receive(60) == message
    thread.join()
    channel.send(message)
    received = b""
    while len(received) < len(framed):
        received += there.recv(1 << 16)
    assert received == framed


def test_a_message_beyond_the_first_limit_is_accepted_after_the_limit_was_raised(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, there = pair
    channel.limit = 2_000_000
    message = {"op": "x", "data": b"a" * 1_500_000}
    body = msgpack.packb(message)
    thread = threading.Thread(target=there.sendall, args=(struct.pack(">I", len(body)) + body,))
    thread.start()
    assert channel.receive(60) == message
    thread.join()


@pytest.mark.parametrize(
    ("sent", "error", "sentence"),
    [
        (b"", ChannelClosed, "it was closed"),
        (b"\0\0", ChannelClosed, "it was closed in the middle of a message"),
        (b"\0\0\0\x09\x81", ChannelClosed, "it was closed in the middle of a message"),
        (b"HTTP/1.1 200 OK", Malformed, "announced a message of 1,213,486,160 bytes where at most 65,536 make sense"),
        (b"\0\0\0\x01\xc1", Malformed, "sent something that is not MessagePack"),
        (b"\0\0\0\x02\x81\xa1", Malformed, "sent something that is not MessagePack"),
        (b"\0\0\0\x02\x01\x02", Malformed, "sent something that is not MessagePack"),
        (b"\0\0\0\x02\xa1\xff", Malformed, "sent something that is not MessagePack"),
        (b"\0\0\0\0", Malformed, "sent something that is not MessagePack"),
        (b"\0\0\x10\0" + b"\x91" * 4096, Malformed, "sent something that is not MessagePack"),
        (b"\0\0\0\x03\xd4\x05\x00", Malformed, "sent an extension type"),
        (b"\0\0\0\x01\x80", Malformed, 'sent a message without an "op"'),
        (b"\0\0\0\x01\x05", Malformed, 'sent a message without an "op"'),
        (b"\0\0\0\x05\x81\xa2op\x07", Malformed, 'sent a message without an "op"'),
        (b"\0\0\0\x05\x81\xa2op\xa0\0", Malformed, "sent a message before it was its turn"),
    ],
)
def test_invalid_messages_are_refused(
    pair: tuple[Channel, socket.socket], sent: bytes, error: type[Exception], sentence: str
) -> None:
    channel, there = pair
    there.sendall(sent)
    there.close()
    with pytest.raises(error) as caught:
        channel.receive(60)
    assert sentence in str(caught.value)


def test_the_example_of_the_documentation_is_what_is_sent(pair: tuple[Channel, socket.socket]) -> None:
    page = Path(__file__).parents[2] / "docs" / "remote-environments.md"
    block = page.read_text(encoding="utf-8").split("### An example")[1].split("```")[1]
    channel, there = pair
    channel.send({"op": "step", "actions": to_wire(np.array([1, 0], np.int32))})
    assert there.recv(1000) == bytes.fromhex(block)


def test_a_silent_or_slowly_sending_peer_is_too_slow(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    with pytest.raises(TooSlow):
        channel.receive(0.01)
    there.sendall(b"\0\0")
    with pytest.raises(TooSlow):
        channel.receive(0.01)


def test_the_buffer_grows_with_received_bytes_not_with_announced_ones(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    channel.limit = 2**30
    there.sendall(struct.pack(">I", 2**30) + bytes(1000))
    tracemalloc.start()
    try:
        with pytest.raises(TooSlow):
            channel.receive(0.2)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(st.just(0.5), min_size=9),
)


@given(OBJECTS, st.integers(0, 2**17))
def test_all_objects_of_a_message_are_counted(value: Any, padding: int) -> None:
    """Whatever they are, and however long the texts and bytes between them."""
    message = [b"x" * padding, "y" * padding, *range(-40, 300), value]
    body = memoryview(msgpack.packb(message))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messagepack, "UNCOUNTED", 0)
        patch.setattr(messagepack, "MOST_OBJECTS", _count(message))
        assert messagepack.unpack(body) == message
        patch.setattr(messagepack, "MOST_OBJECTS", _count(message) - 1)
        with pytest.raises(Malformed, match="sent a message of more than"):
            messagepack.unpack(body)


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_count(key) + _count(each) for key, each in value.items())
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def test_small_messages_with_long_lists_are_accepted() -> None:
    message = {"op": "x", "a": [None] * 60_000, "b": {str(number): 0 for number in range(500)}}
    assert messagepack.unpack(msgpack.packb(message)) == message


def test_values_in_errors_are_short_and_made_quickly() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, [0] * 10**6, "x" * 10**6, {str(number): [0] * 1000 for number in range(1000)}):
        with pytest.raises(Malformed) as caught:
            read_count({"op": "x", "n": value}, "n")
        assert len(str(caught.value)) < 200
