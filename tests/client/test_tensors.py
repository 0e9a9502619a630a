"""Arrays as binary tensors and back, without a server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from timebound import Client
from timebound.client.message import HEAD_SIZE, Reply
from timebound.client.tensors import outputs_in, packed
from timebound.errors import BadInput

URL = "http://host:8000"


def sent(inputs: Any, **more: Any) -> tuple[dict[str, Any], bytes]:
    """The JSON and the bytes behind it."""
    size, body = packed(inputs, more.get("outputs"), more.get("parameters"))
    return json.loads(body[:size]), body[size:]


def echoed(inputs: dict[str, Any]) -> dict[str, Any]:
    """What came back if a server said the same tensors."""
    size, body = packed(inputs, None, None)
    head = json.loads(body[:size])
    said = json.dumps({"outputs": head["inputs"]}).encode()
    return outputs_in(Reply(200, {HEAD_SIZE: str(len(said))}, said + body[size:]))


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.array([[True], [False]]), "BOOL"),
        (np.arange(6, dtype=np.uint8).reshape(2, 3), "UINT8"),
        (np.array([-1], np.int16), "INT16"),
        (np.array([2**40]), "INT64"),
        (np.array([1.5, np.nan, -np.inf], np.float16), "FP16"),
        (np.array([[1.5, 2.5]], np.float32), "FP32"),
        (np.array([1.5], ">f8"), "FP64"),
        (np.zeros((0, 3), np.float32), "FP32"),
    ],
)
def test_arrays_of_numbers_go_out_in_binary_and_come_back_the_same(array: Any, datatype: str) -> None:
    head, data = sent({"x": array})
    (told,) = head["inputs"]
    assert (told["datatype"], told["shape"], len(data)) == (datatype, list(array.shape), array.nbytes)
    assert head["parameters"] == {"binary_data_output": True}
    back = echoed({"x": array})["x"]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype.newbyteorder("<")


def test_texts_and_bytes_are_elements_of_any_length() -> None:
    for given in (np.array(["a", "über"]), ["a", "über"], np.array(["a", b"\xc3\xbcber"], dtype=object)):
        back = echoed({"x": given})["x"]
        assert back.tolist() == [b"a", "über".encode()]
    assert echoed({"x": np.array([[b"a\0b"], [b""]], dtype=object)})["x"].tolist() == [[b"a\0b"], [b""]]


def test_wanted_outputs_and_parameters_are_said() -> None:
    head, _ = sent({"x": [1.0]}, outputs=["y"], parameters={"top": 3})
    assert head["outputs"] == [{"name": "y"}]
    assert head["parameters"] == {"top": 3, "binary_data_output": True}


def test_outputs_in_json_are_read_too() -> None:
    outputs = [
        {"name": "y", "shape": [1, 3], "datatype": "FP32", "data": [1.5, "NaN", "-Infinity"]},
        {"name": "n", "shape": [2, 1], "datatype": "UINT64", "data": [[1], [2**63]]},
        {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["über"]},
    ]
    found = outputs_in(Reply(200, {}, json.dumps({"outputs": outputs}).encode()))
    np.testing.assert_array_equal(found["y"], np.array([[1.5, np.nan, -np.inf]], np.float32))
    assert (found["n"].tolist(), found["t"].tolist()) == ([[1], [2**63]], ["über".encode()])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "give the inputs by their names"),
        (np.zeros(3), "give the inputs by their names"),
        ({"x": 1.5}, "has no dimensions; the first one counts the items"),
        ({"x": [[1.0], [1.0, 2.0]]}, "is no array"),
        ({"x": np.array([1j])}, "has the type complex128"),
        ({"x": np.array([{}], dtype=object)}, "holds a dict; give numbers, texts or bytes"),
    ],
)
def test_what_is_no_tensor_is_said_before_anything_is_sent(given: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Client(URL).infer("doubler", given)


def test_infer_says_which_arguments_it_has() -> None:
    with pytest.raises(TypeError, match="infer has no argument 'votes'; give it to ask"):
        Client(URL).infer("doubler", {"x": [1.0]}, votes=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="ask has no argument 'outputs'; give it to infer"):
        Client(URL).ask("doubler", {}, outputs=["y"])  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="no list of names"):
        Client(URL).infer("doubler", {"x": [1.0]}, outputs="y")
    with pytest.raises(BadInput, match="the parameters cannot be sent"):
        Client(URL).infer("doubler", {"x": [1.0]}, parameters={"a": object()})


CUT_SHORT = b'{"outputs":[{"name":"y","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}]}\x09\0\0\0ab'


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {HEAD_SIZE: "many"}, b"{}"),
        Reply(200, {HEAD_SIZE: "2"}, b"{}more"),
        Reply(200, {}, b'{"outputs":[{"name":"y","shape":[1],"datatype":"FP7","data":[1]}]}'),
        Reply(200, {}, b'{"outputs":[{"name":"y","shape":[3],"datatype":"FP32","data":[1]}]}'),
        Reply(200, {HEAD_SIZE: str(len(CUT_SHORT) - 6)}, CUT_SHORT),
    ],
)
def test_an_answer_that_is_not_as_the_protocol_says_is_no_answer(reply: Reply) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        outputs_in(reply)
