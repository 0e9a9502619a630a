"""A ModelInferRequest becomes items; whatever else comes is refused as the client's mistake."""

from __future__ import annotations

import gzip
from time import process_time
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from timebound.errors import RequestError
from timebound.rpc import reader
from timebound.rpc.reader import Named, named, read
from timebound.rpc.surface import response
from timebound.rpc.wire import field, packing_of, spans, unpacked_if_light, varint
from timebound.tensors.given import Facts, Infer
from timebound.tensors.item import Part, unpack
from timebound.tensors.request import Told
from timebound.types import Tensor

FACTS = Facts([Tensor("x", "FP32", [-1, 2]), Tensor("t", "BYTES", [-1], is_optional=True)], ["y"], False)


def request(**more: Any) -> Any:
    return service_pb2.ModelInferRequest(model_name="m", **more)


def tensor(name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    made = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for kind, values in contents.items():
        getattr(made.contents, kind).extend(values)
    return made


def cut(message: Message) -> Infer:
    return read(FACTS, Told(None), message.SerializeToString())


def whole(body: bytes) -> Infer:
    """All that is done with a message."""
    reader.is_heavy(body)
    named(body)
    return read(FACTS, Told(None), body)


def refused(message: Message | bytes) -> str:
    body = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(RequestError) as caught:
        whole(body)
    assert caught.value.code in ("bad_input", "empty_body")
    return caught.value.detail


ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def test_raw_and_typed_contents_are_the_same_items() -> None:
    raw = request(inputs=[tensor("x", "FP32", [3, 2])], raw_input_contents=[ROWS.tobytes()])
    typed = request(inputs=[tensor("x", "FP32", [3, 2], fp32_contents=ROWS.ravel().tolist())])
    assert [item.body for item in cut(raw).items] == [item.body for item in cut(typed).items]
    _, (data,) = unpack(cut(raw).items[1].body)
    assert bytes(data) == ROWS[1].tobytes()
    assert cut(raw).is_binary


def test_a_large_message_is_read_without_a_copy_of_its_data_as_a_small_one_is() -> None:
    rows = np.arange(2_000, dtype=np.float32).reshape(-1, 2)[:250]
    text = tensor("t", "BYTES", [250])
    message = request(
        id="a",
        inputs=[tensor("x", "FP32", [250, 2]), text],
        raw_input_contents=[rows.tobytes(), b"\1\0\0\0a" * 250],
    )
    body = message.SerializeToString()
    assert len(body) > 2_048
    infer = read(FACTS, Told(None), body)
    assert (infer.id, len(infer.items)) == ("a", 250)
    _, (x, t) = unpack(infer.items[7].body)
    assert (bytes(x), bytes(t)) == (rows[7].tobytes(), b"\1\0\0\0a")


@pytest.mark.parametrize(
    ("datatype", "contents", "numbers"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 1]),
        ("INT32", "int_contents", [-(2**31), 1]),
        ("INT64", "int64_contents", [-(2**63), 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP64", "fp64_contents", [0.5, 1e300]),
    ],
)
def test_every_typed_kind_is_taken(datatype: str, contents: str, numbers: list[Any]) -> None:
    facts = Facts([Tensor("n", datatype, [-1, 2])], [], False)
    message = request(inputs=[tensor("n", datatype, [1, 2], **{contents: numbers})])
    _, (data,) = unpack(read(facts, Told(None), message.SerializeToString()).items[0].body)
    kinds = {"BOOL": "?", "FP64": "<f8"}
    kind = kinds.get(datatype) or f"<{datatype[0].lower()}{int(datatype.lstrip('UINT')) // 8}"
    assert np.frombuffer(data, kind).tolist() == numbers


def test_parameters_of_every_kind_are_said() -> None:
    message = request(inputs=[tensor("x", "FP32", [1, 2], fp32_contents=[1, 2])])
    message.parameters["timeout"].int64_param = 250_000
    message.parameters["priority"].uint64_param = 1
    message.parameters["flag"].bool_param = True
    message.parameters["word"].string_param = "w"
    message.parameters["number"].double_param = 0.5
    infer = cut(message)
    assert (infer.timeout_s, infer.priority) == (0.25, 99)
    head, _ = unpack(infer.items[0].body)
    assert head.parameters == {"flag": True, "word": "w", "number": 0.5}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (request(), "input 'x' is missing"),
        (service_pb2.ModelInferRequest(inputs=[tensor("x", "FP32", [1, 2], fp32_contents=[1, 2])]), "names no model"),
        (request(inputs=[tensor("x", "FP32", [3, 2])], raw_input_contents=[b"12"]), "has 2 bytes"),
        (request(inputs=[tensor("x", "FP32", [3, 2])], raw_input_contents=[b"", b""]), "one for each input"),
        (request(inputs=[tensor("x", "FP32", [])], raw_input_contents=[b""]), "1 to 32 dimensions"),
        (request(inputs=[tensor("x", "FP32", [-1, 2])], raw_input_contents=[b""]), "none negative"),
        (request(inputs=[tensor("x", "FP32", [1] * 33)], raw_input_contents=[b"1234"]), "1 to 32 dimensions"),
        (request(inputs=[tensor("x", "FP32", [2**62, 2])], raw_input_contents=[b""]), "dimensions"),
        (request(inputs=[tensor("x", "FP32", [2**39, 2**39])], raw_input_contents=[b""]), "has 0 bytes"),
        (request(inputs=[tensor("x", "FP32", [0, 2])], raw_input_contents=[b""]), "send 1 to 256"),
        (request(inputs=[tensor("x", "NONE", [1, 2])], raw_input_contents=[b""]), "datatype 'NONE'"),
        (request(inputs=[tensor("x", "FP16", [1, 2], fp32_contents=[1, 2])]), "raw_input_contents alone"),
        (request(inputs=[tensor("x", "FP32", [1, 2], fp32_contents=[1])]), "has 4 bytes"),
        (request(inputs=[tensor("x", "INT8", [1, 2], int_contents=[1, 300])]), "beyond what INT8 can hold"),
        (request(inputs=[tensor("x", "FP32", [1, 2], fp32_contents=[1, 2])], raw_input_contents=[b"x" * 8]), "both"),
        (b"\x0a\x01m\x12", "cut short"),
        (b"\x0a\x01m" + b"\x20\x01" * 700, "more than 600 fields"),
        (b"\x0a\x01m\x2a\x05\x0a\xff\xff\xff\xff", "no ModelInferRequest"),
        (b"\x0a\x02\xff\xfe", "no text in UTF-8"),
        (b"\x0b", "cut short, or is none"),
    ],
)
def test_what_is_wrong_is_named(message: Any, said: str) -> None:
    assert said in refused(message)


def test_a_message_of_nothing_but_fields_costs_next_to_nothing() -> None:
    began = process_time()
    refused(b"\x20\x01" * 5_000_000)
    assert process_time() - began < 0.1


def test_the_name_is_found_before_the_rest_is_here() -> None:
    message = request(model_version="2", id="i", inputs=[tensor("x", "FP32", [9])], raw_input_contents=[b"x" * 900])
    assert named(message.SerializeToString()[:40]) == Named("m", "2", "i")


def test_packed_messages_are_told_by_their_first_bytes_and_unpacked_within_bounds() -> None:
    body = request(inputs=[tensor("x", "FP32", [1, 2], fp32_contents=[1, 2])]).SerializeToString()
    assert packing_of(body) == ""
    assert packing_of(gzip.compress(body)) == "gzip"
    assert unpacked_if_light(gzip.compress(body), "gzip") == body
    assert unpacked_if_light(gzip.compress(bytes(10_000_000)), "gzip") is None
    with pytest.raises(RequestError, match="over 1000 bytes"):
        read(FACTS, Told(None, "gzip", 1_000), gzip.compress(bytes(10_000_000)))


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for message in (data, b"\x0a\x01m" + data):
        try:
            whole(message)
        except RequestError as error:
            assert error.code in ("bad_input", "empty_body")  # noqa: PT017 - most are refused, not all


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300))
def test_what_is_written_is_read_by_a_client(number: int, data: bytes) -> None:
    part = Part("y", "UINT8", [abs(number)], len(data))
    body = response(field(1, b"m") + field(2, b"1"), "i", b"", [(part, [data, data])])
    told = service_pb2.ModelInferResponse.FromString(body)
    assert (told.model_name, told.model_version, told.id) == ("m", "1", "i")
    if abs(number) < 2**63:
        assert list(told.outputs[0].shape) == [2, abs(number)]
    assert list(told.raw_output_contents) == [data + data]
    ((_, _, start, end),) = spans(b"\x08" + varint(number))
    assert end - start == len(varint(number))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_endless_name_is_refused_before_it_is_read(number: int) -> None:
    message = field(1, b"m") + field(number, "é".encode() * 4_500_000)
    with pytest.raises(RequestError, match="more than 4096 bytes"):
        named(message)
    assert named(field(1, b"m") + field(3, b"i" * 4_096)) == Named("m", "", "i" * 4_096)
