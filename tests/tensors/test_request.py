"""Requests are cut into items without a look at the numbers; what cannot be right is refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.tensors.given import Facts, Infer
from timebound.tensors.item import pack, unpack
from timebound.tensors.request import Reader, Told, read
from timebound.types import Tensor

FACTS = Facts([Tensor("x", "FP32", [-1, 2]), Tensor("t", "BYTES", [-1], True)], ["y"], False)


def ask(inputs: list[dict[str, Any]], data: bytes = b"", facts: Facts = FACTS, **more: Any) -> Infer:
    head = json.dumps({"inputs": inputs, **more}).encode()
    return read(facts, Told(len(head) if data else None), head + data)


def x(shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": shape, "data": data}


def texts(infer: Infer) -> list[list[bytes]]:
    return [[bytes(own) for own in unpack(item.body)[1]] for item in infer.items]


def test_flat_and_nested_lists_are_cut_alike() -> None:
    assert texts(ask([x([2, 2], [1, 2, 3, 4])])) == [[b"[1,2]"], [b"[3,4]"]]
    assert texts(ask([x([2, 2], [[1, 2], [3, 4]])])) == [[b"[1, 2]"], [b"[3, 4]"]]
    assert texts(ask([x([1, 2], [[1, 2]])])) == [[b"[[1, 2]]"]]


def test_binary_data_are_cut_by_their_sizes() -> None:
    numbers, words = struct.pack("<4f", 1, 2, 3, 4), b"\1\0\0\0a\0\0\0\0"
    inputs = [
        {"name": "t", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(words)}},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": len(numbers)}},
    ]
    assert texts(ask(inputs, words + numbers)) == [[b"\1\0\0\0a", numbers[:8]], [b"\0\0\0\0", numbers[8:]]]


def test_priority_1_is_the_highest_and_0_says_nothing() -> None:
    said = [ask([x([1, 2], [1, 2])], parameters={"priority": priority}).priority for priority in (0, 1, 2, 100, 10**6)]
    assert said == [None, 99, 98, 0, -100]


def test_a_timeout_is_in_microseconds() -> None:
    assert ask([x([1, 2], [1, 2])], parameters={"timeout": 250_000}).timeout_s == pytest.approx(0.25)
    assert ask([x([1, 2], [1, 2])], parameters={"timeout": 0}).timeout_s is None


def test_key_and_size_are_read_from_the_inputs_that_carry_them() -> None:
    facts = Facts([Tensor("id", "BYTES", [-1]), Tensor("text", "BYTES", [-1])], [], False, "id", "text")
    inputs = [
        {"name": "id", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["four", "three"]},
    ]
    items = ask(inputs, facts=facts).items
    assert [(item.key, item.size) for item in items] == [("a", 4.0), ("b", 5.0)]
    assert len({item.fingerprint for item in items}) == 2


@pytest.mark.parametrize(
    ("again", "is_same"),
    [
        ([b'["a"]', b"[1.0, 2]"], True),
        ([b' [ "\\u0061" ]', b"[1e0,2]"], True),
        ([b'["b"]', b"[1,2]"], False),
        ([b'["a"]', b"[2,1]"], False),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_request_written_in_another_way_has_the_same_fingerprint(
    again: list[bytes], is_same: bool, is_turned: bool
) -> None:
    facts = Facts([Tensor("text", "BYTES", [-1]), Tensor("n", "FP32", [-1, 2])], [], False)

    def print_of(data: list[bytes], parameters: bytes, is_turned: bool) -> bytes:
        text = b'{"name":"text","datatype":"BYTES","shape":[1],"data":%b}' % data[0]
        n = b'{"name":"n","datatype":"FP32","shape":[1,2],"data":%b}' % data[1]
        inputs = [n, text] if is_turned else [text, n]
        body = b'{"inputs":[%b],"parameters":{%b}}' % (b",".join(inputs), parameters)
        return read(facts, Told(needs_print=True), body).items[0].fingerprint

    first = print_of([b'["a"]', b"[1,2]"], b'"p":1,"q":2', False)
    assert (print_of(again, b'"q":2,"p":1', is_turned) == first) is is_same


def test_the_process_for_heavy_bodies_cuts_the_same_items() -> None:
    body = json.dumps({"inputs": [x([2, 2], [1, 2, 3, 4])], "id": "a"}).encode()
    said = Reader(msgspec.msgpack.encode(FACTS))(msgspec.msgpack.encode(Told()), body)
    assert msgspec.msgpack.decode(said, type=Infer) == read(FACTS, Told(), body)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(-3, 300), st.sampled_from(["", "gzip", "deflate", "br"]))
def test_any_bytes_are_read_or_refused(body: bytes, size: int | None, encoding: str) -> None:
    for facts in (FACTS, Facts([Tensor("body", "BYTES", [-1])], ["answer"], True)):
        try:
            said = read(facts, Told(size, encoding, 1000), body).id
        except RequestError as error:
            said = error.code
        assert said != "internal"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_what_is_no_item_is_refused(body: bytes) -> None:
    whole = pack(unpack(ask([x([1, 2], [1, 2])]).items[0].body)[0], [b"[1, 2]"])
    for broken in (body, whole[:-1], whole + b"x", b"\xc1" + body):
        with pytest.raises(RequestError):
            unpack(broken)
