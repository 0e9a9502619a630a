"""The Open Inference Protocol over REST, point by point: what a request may say, and what it is told."""

from __future__ import annotations

import gzip
import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.test_api_keys import TOKEN, Guarded

pytestmark = pytest.mark.live

ECHO = "/v2/models/echo/infer"
KINDS = "/v2/models/kinds/infer"


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "tensors.py", "--workers", "1", "--max-body", "1000000") as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.fixture(scope="module")
def echo() -> Iterator[Serving]:
    with Serving(MODELS / "echo.py", "--workers", "1", "--max-body", "1000000") as serving:
        yield serving
        assert "Traceback" not in serving.said


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        told["data"] = data
    return told | ({"parameters": parameters} if parameters else {})


def value(*numbers: int) -> dict[str, Any]:
    return tensor("value", "INT64", [len(numbers)], list(numbers))


def kinds(*texts: str, **more: Any) -> dict[str, Any]:
    count = len(texts)
    inputs = [
        tensor("text", "BYTES", [count], list(texts)),
        tensor("number", "FP64", [count], [0.5] * count),
        tensor("counts", "INT64", [count, 1], [1] * count),
    ]
    return {"inputs": inputs, **more}


def in_binary(head: dict[str, Any], data: bytes, size: int | str | None = None) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(head).encode()
    return text + data, {"Inference-Header-Content-Length": str(len(text) if size is None else size)}


def outputs(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def error_of(answer: httpx.Response) -> str:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    assert list(said) == ["error"]
    return str(said["error"])


# ---------------------------------------------------------------------- health and metadata


def test_the_server_says_that_it_lives_and_is_ready(echo: Serving) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/health/ready/", "/v2/health/live?probe=1"):
        answer = echo.http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"live": True, "ready": True})


def test_a_server_whose_model_still_loads_lives_and_is_not_ready(tmp_path: Path) -> None:
    with (
        Gate(tmp_path / "gate") as gate,
        Serving(MODELS / "waits.py", environment={"LOAD_GATE": str(gate.path)}, until_ready=False) as serving,
    ):
        assert serving.http.get("/v2/health/live").status_code == 200
        assert serving.http.get("/v2/health/ready").status_code == 503
        asked = serving.http.post("/v2/models/waits/infer", json={"inputs": []})
        assert (asked.status_code, list(asked.json())) == (503, ["error"])


def test_metadata_have_names_datatypes_and_shapes_of_a_class(serving: Serving) -> None:
    for path in ("/v2/models/kinds", "/v2/models/kinds/", "/v2/models/kinds/versions/1"):
        told = serving.http.get(path).json()
        inputs = {each["name"]: (each["datatype"], each["shape"]) for each in told["inputs"]}
        assert inputs["text"] == ("BYTES", [-1])
        assert inputs["number"] == ("FP64", [-1])
        assert inputs["counts"] == ("INT64", [-1, -1])
        assert inputs["flag"] == ("BOOL", [-1])
        assert {each["name"] for each in told["outputs"]} == {"text", "number", "counts", "flag", "raw", "more"}
    assert serving.http.get("/v2/models/kinds/versions/1/ready").json() == {"name": "kinds", "ready": True}
    raw = serving.http.get("/v2/models/raw").json()
    assert raw["inputs"] == [{"name": "body", "datatype": "BYTES", "shape": [-1]}]


@pytest.mark.parametrize("end", ["", "/ready", "/config", "/stats", "/versions/7", "/infer"])
def test_an_unknown_model_is_told_in_words_that_clients_look_for(echo: Serving, end: str) -> None:
    name = "echo" if end == "/versions/7" else "nobody"
    answer = echo.http.post(f"/v2/models/{name}{end}") if end == "/infer" else echo.http.get(f"/v2/models/{name}{end}")
    assert answer.status_code == 404
    assert error_of(answer).startswith("Request for unknown model")


def test_other_paths_and_methods_are_refused_in_the_same_form(echo: Serving) -> None:
    assert echo.http.get("/v2/nothing").status_code == 404
    assert "nothing is at" in error_of(echo.http.get("/v2/nothing"))
    assert echo.http.get(ECHO).status_code == 405
    assert "POST" in error_of(echo.http.get(ECHO))
    assert "over" in error_of(echo.http.post(ECHO, content=b"x" * 1_000_001))


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize("media", [None, "application/json", "application/octet-stream", "text/plain"])
def test_any_content_type_will_do(echo: Serving, media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    body = json.dumps({"inputs": [value(3)]}).encode()
    assert outputs(echo.http.post(f"{ECHO}?x=1", content=body, headers=headers))["value"] == [3]
    assert outputs(echo.http.post(f"{ECHO}/", content=body, headers=headers))["value"] == [3]
    version = echo.http.post("/v2/models/echo/versions/1/infer", content=body, headers=headers)
    assert outputs(version)["value"] == [3]


def test_the_id_comes_back_and_is_the_key_of_a_model_that_has_one(echo: Serving) -> None:
    first = echo.http.post(ECHO, json={"id": "k1", "inputs": [value(5)]})
    again = echo.http.post(ECHO, json={"id": "k1", "inputs": [value(5)]})
    other = echo.http.post(ECHO, json={"id": "k1", "inputs": [value(6)]})
    assert [first.json()["id"], first.headers["timebound-source"]] == ["k1", "computed"]
    assert (again.json(), again.headers["timebound-source"]) == (first.json(), "stored")
    assert other.status_code == 422
    assert "key" in error_of(other)


@pytest.mark.parametrize(
    "said", [{"id": "n1"}, {"parameters": {"id": "n2"}}, {"id": "other", "parameters": {"id": "n3"}}]
)
def test_a_required_field_is_filled_by_the_id_or_by_a_parameter(serving: Serving, said: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"inputs": [tensor("text", "BYTES", [1], ["great"])], **said}
    name = said.get("parameters", said)["id"]
    answers = [serving.http.post("/v2/models/named/infer", json=asked) for _ in range(2)]
    assert [outputs(answer) for answer in answers] == [{"id": [name], "text": ["great"]}] * 2
    assert [answer.headers["timebound-source"] for answer in answers] == ["computed", "stored"]
    asked["inputs"][0]["data"] = ["awful"]
    assert serving.http.post("/v2/models/named/infer", json=asked).status_code == 422


def test_an_input_goes_before_the_id_and_before_a_parameter(serving: Serving) -> None:
    inputs = [tensor("text", "BYTES", [1], ["great"]), tensor("id", "BYTES", [1], ["mine"])]
    asked = {"id": "i", "parameters": {"id": "p"}, "inputs": inputs}
    assert outputs(serving.http.post("/v2/models/named/infer", json=asked))["id"] == ["mine"]


def test_an_id_names_one_item_and_a_parameter_fills_many(serving: Serving) -> None:
    asked: dict[str, Any] = {"id": "several", "inputs": [tensor("text", "BYTES", [2], ["great", "awful"])]}
    assert "'id' is missing" in error_of(serving.http.post("/v2/models/named/infer", json=asked))
    asked["parameters"] = {"id": "both"}
    answer = serving.http.post("/v2/models/named/infer", json=asked)
    assert outputs(answer) == {"id": ["both", "both"], "text": ["great", "awful"]}


def test_fields_that_may_differ_between_attempts_do_not_count(serving: Serving) -> None:
    def ask(retry: int) -> httpx.Response:
        asked = kinds("a", id="k9")
        asked["inputs"].append(tensor("retry", "INT64", [1], [retry]))
        return serving.http.post(KINDS, json=asked)

    assert [ask(0).headers["timebound-source"], ask(1).headers["timebound-source"]] == ["computed", "stored"]


def test_an_idempotency_key_counts_here_too(serving: Serving) -> None:
    answers = [serving.http.post(KINDS, json=kinds("a", "b"), headers={"Idempotency-Key": "i1"}) for _ in range(2)]
    assert [answer.headers["timebound-source"] for answer in answers] == ["computed", "stored"]
    assert outputs(answers[0]) == outputs(answers[1])


def test_many_items_are_batched_and_put_together_in_order(echo: Serving) -> None:
    numbers = list(range(250))
    answer = echo.http.post(ECHO, json={"inputs": [value(*numbers)]})
    assert outputs(answer)["value"] == numbers
    assert int(answer.headers["timebound-batch"]) > 1
    nested = tensor("value", "INT64", [3, 1], [[1], [2], [3]])
    assert outputs(echo.http.post(ECHO, json={"inputs": [nested]}))["value"] == [1, 2, 3]
    assert "items" in error_of(echo.http.post(ECHO, json={"inputs": [value(*range(257))]}))
    assert "items" in error_of(echo.http.post(ECHO, json={"inputs": [value()]}))


def test_one_bad_item_is_named_and_is_the_answer(serving: Serving) -> None:
    answer = serving.http.post(KINDS, json=kinds("good", "bad", "fine"))
    assert answer.status_code == 400
    assert error_of(answer) == "item 1: input 'text': that is a bad word"


def test_a_large_json_list_is_read_as_a_small_one(serving: Serving) -> None:
    counts = list(range(20_000))
    asked = kinds("a")
    asked["inputs"][2] = tensor("counts", "INT64", [1, 20_000], counts)
    assert outputs(serving.http.post(KINDS, json=asked))["counts"] == counts


def test_python_writes_numbers_that_are_no_json(serving: Serving) -> None:
    asked = json.dumps(kinds("NaN, Infinity"))
    answer = serving.http.post(KINDS, content=asked.replace("[0.5]", "[NaN]"))
    assert outputs(answer) | {"raw": 0} == outputs(answer) | {"number": ["NaN"], "text": ["NAN, INFINITY"], "raw": 0}


@pytest.mark.parametrize("size", [0, -1, 10**9, "x", "", "9" * 30, 3])
def test_a_lying_length_of_the_head_is_refused(echo: Serving, size: int | str) -> None:
    body, headers = in_binary({"inputs": [tensor("value", "INT64", [1], binary_data_size=8)]}, bytes(8), size)
    answer = echo.http.post(ECHO, content=body, headers=headers)
    assert answer.status_code == 400
    error_of(answer)


@pytest.mark.parametrize(
    ("shape", "size", "data", "says"),
    [
        ([1], 8, bytes(7), "bytes are left"),
        ([1], 9, bytes(9), "has 8"),
        ([2], 8, bytes(8), "has 16"),
        ([1], 8, bytes(9), "more than its inputs say"),
        ([1], -1, bytes(8), "no whole number"),
        ([1], True, bytes(8), "no whole number"),
        ([10**12, 10**12], 8, bytes(8), "bytes"),
        ([-1], 8, bytes(8), "Expected"),
        ([], 8, bytes(8), "Expected"),
    ],
)
def test_lying_sizes_are_refused(echo: Serving, shape: list[int], size: Any, data: bytes, says: str) -> None:
    body, headers = in_binary({"inputs": [tensor("value", "INT64", shape, binary_data_size=size)]}, data)
    assert says in error_of(echo.http.post(ECHO, content=body, headers=headers))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("elements", [b"\xff\xff\xff\xff", struct.pack("<I", 9) + b"ab", b"\1", b"\1\0\0\0a\1\0"])
def test_bytes_elements_that_are_cut_short_are_refused(serving: Serving, elements: bytes, count: int) -> None:
    body, headers = in_binary({"inputs": [tensor("body", "BYTES", [count], binary_data_size=len(elements))]}, elements)
    error_of(serving.http.post("/v2/models/raw/infer", content=body, headers=headers))


def test_a_head_of_length_zero_makes_the_whole_body_the_only_input(serving: Serving, echo: Serving) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    assert outputs(serving.http.post("/v2/models/raw/infer", content=b"abc", headers=headers))["answer"] == ["cba"]
    asked = echo.http.post(ECHO, content=struct.pack("<2q", 7, 8), headers=headers)
    assert outputs(asked)["value"] == [7, 8]
    assert "bytes" in error_of(echo.http.post(ECHO, content=b"1234567", headers=headers))


ONE = {"name": "value", "datatype": "INT64", "shape": [1], "data": [1]}
REGION = {"shared_memory_region": "a"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "JSON"),
        (b"[" * 100_000, "Expected 'object'"),
        (b'{"inputs": ' + b"[" * 100_000, "Expected 'object'"),
        (b'{"x": ' + b"[" * 100_000, "JSON"),
        ({"inputs": []}, "missing"),
        ({"inputs": [{**ONE, "shape": [-1]}]}, "inputs[0].shape[0]: Expected 'int' >= 0"),
        ({"inputs": [{**ONE, "name": 5}]}, "inputs[0].name: Expected 'str'"),
        ({"inputs": [{"name": "value"}]}, "inputs[0].shape"),
        ({"inputs": [ONE], "id": 5}, "id: Expected"),
        ({"inputs": [ONE, ONE]}, "twice"),
        ({"inputs": [{**ONE, "datatype": "INT63"}]}, "INT63"),
        ({"inputs": [{**ONE, "data": 1}]}, "no list"),
        ({"inputs": [{**ONE, "data": ["1"]}]}, "INT64"),
        ({"inputs": [{**ONE, "data": [1.5]}]}, "INT64"),
        ({"inputs": [{**ONE, "data": [None]}]}, "INT64"),
        ({"inputs": [{**ONE, "data": [True]}]}, "INT64"),
        ({"inputs": [{**ONE, "data": [2**70]}]}, "INT64"),
        ({"inputs": [{**ONE, "datatype": "INT8", "data": [300]}]}, "INT8"),
        ({"inputs": [{**ONE, "shape": [2]}]}, "values"),
        ({"inputs": [{**ONE, "shape": [1, 2], "data": [1, 2]}]}, "one element"),
        ({"inputs": [{**ONE, "data": None}]}, "neither"),
        ({"inputs": [{**ONE, "parameters": {"binary_data_size": 8}}]}, "both"),
        ({"inputs": [{**ONE, "parameters": REGION}]}, "shared memory"),
        ({"inputs": [ONE], "outputs": [{"name": "value", "parameters": REGION}]}, "shared memory"),
        ({"inputs": [ONE], "outputs": [{"name": "z"}]}, "no output"),
        ({"inputs": [ONE], "parameters": {"timeout": "x"}}, "timeout"),
        ({"inputs": [ONE], "parameters": {"priority": -1}}, "priority"),
        ({"inputs": [ONE], "parameters": {"sequence_id": 3}}, "sequences"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(echo: Serving, body: Any, says: str) -> None:
    answer = echo.http.post(ECHO, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert answer.status_code == 400
    assert says in error_of(answer)


def test_lists_nested_without_end_are_refused(echo: Serving) -> None:
    for depth in (90, 50_000):
        data = "[" * depth + "]" * depth
        body = json.dumps({"inputs": [{**ONE, "data": 0}]}).replace('"data": 0', f'"data": {data}')
        assert echo.http.post(ECHO, content=body).status_code == 400


# ---------------------------------------------------------------------- packed bodies


def test_packed_bodies_are_bounded_before_they_are_unpacked(echo: Serving) -> None:
    plain = json.dumps({"inputs": [value(3)]}).encode()
    for encoding, packed in (
        ("gzip", gzip.compress(plain)),
        ("deflate", zlib.compress(plain)),
        ("deflate", zlib.compress(plain, wbits=-15)),
        ("identity", plain),
    ):
        assert outputs(echo.http.post(ECHO, content=packed, headers={"content-encoding": encoding}))["value"] == [3]
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    answer = echo.http.post(ECHO, content=bomb, headers={"content-encoding": "gzip"})
    assert (answer.status_code, "unpacked" in error_of(answer)) == (413, True)
    for broken in (b"", b"\x1f\x8b", gzip.compress(plain)[:-9], gzip.compress(plain) + b"x", plain):
        assert echo.http.post(ECHO, content=broken, headers={"content-encoding": "gzip"}).status_code == 400
    unknown = echo.http.post(ECHO, content=plain, headers={"content-encoding": "br"})
    assert (unknown.status_code, unknown.headers["accept-encoding"]) == (415, "gzip, deflate")


def test_an_answer_is_packed_for_who_takes_it_so(serving: Serving) -> None:
    asked = kinds("a" * 100_000)
    answer = serving.http.post(KINDS, json=asked, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 2_000
    assert outputs(answer)["text"] == ["A" * 100_000]
    plain = serving.http.post(KINDS, json=asked, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == answer.json()


# ---------------------------------------------------------------------- deadlines, priorities, keys


def test_a_timeout_in_microseconds_is_a_deadline(serving: Serving) -> None:
    asked = {"inputs": [tensor("seconds", "FP64", [1], [1.0])], "parameters": {"timeout": 200_000}}
    began = time.monotonic()
    answer = serving.http.post("/v2/models/slow/infer", json=asked)
    took = time.monotonic() - began
    assert (answer.status_code, list(answer.json())) == (504, ["error"])
    assert took < 0.9
    eventually(lambda: serving.gauge("requests_pending") == 0, "nothing pending")
    asked["parameters"] = {"timeout": 0}
    assert serving.http.post("/v2/models/slow/infer", json=asked).status_code == 200


def test_api_keys_hold_as_on_other_routes(tmp_path: Path) -> None:
    with Guarded(tmp_path, MODELS / "echo.py", "--workers", "1", "--admin-token", TOKEN) as serving:
        asked = {"inputs": [value(1)]}
        for headers in ({}, {"X-API-Key": "tb_wrong"}):
            answer = serving.http.post(ECHO, json=asked, headers=headers)
            assert answer.status_code == 401
            error_of(answer)
        assert serving.http.post(ECHO, json=asked, headers={"X-API-Key": serving.shop}).status_code == 200
        assert serving.http.post(ECHO, json=asked, headers={"X-API-Key": serving.toy}).status_code == 403
        for path in ("/v2", "/v2/models/echo", "/v2/repository/index"):
            assert serving.http.get(path).status_code == 401
        told = set()
        for name in ("echo", "nobody"):  # whether there is such a model is not told to who may not ask it
            told.add(serving.http.get(f"/v2/models/{name}", headers={"X-API-Key": serving.toy}).text)
            told.add(serving.http.post(f"/v2/models/{name}/infer", headers={"X-API-Key": serving.toy}, json=asked).text)
        assert told == {'{"error":"the key of \'toy\' is not for this model"}'}
        assert serving.http.get("/v2/repository/index", headers={"X-API-Key": serving.toy}).json() == []
        assert serving.http.get("/v2/health/ready").status_code == 200
        many = serving.http.post(ECHO, json={"inputs": [value(1, 2, 3)]}, headers={"X-API-Key": serving.lab})
        assert many.status_code == 429  # three items count as three, and its burst is two
        load = "/v2/repository/models/echo/unload"
        assert serving.http.post(load, headers={"X-API-Key": serving.shop}).status_code == 401


# ---------------------------------------------------------------------- anything at all

NAMES = st.sampled_from(["value", "id", "text", "body", "", "x"])
DATATYPES = st.sampled_from(["INT64", "FP32", "BYTES", "BOOL", "BF16", "UINT8", "FP16", "NONE"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
TENSORS = st.fixed_dictionaries(
    {"name": NAMES | JSON, "datatype": DATATYPES | JSON, "shape": st.lists(st.integers(-2, 5), max_size=3) | JSON},
    optional={
        "data": JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-9, 64) | JSON}),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3) | JSON},
    optional={
        "id": st.text(max_size=300) | JSON,
        "outputs": st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"parameters": JSON}), max_size=2) | JSON,
        "parameters": st.dictionaries(
            st.sampled_from(["timeout", "priority", "binary_data_output", "classification", "x"]), JSON, max_size=3
        ),
    },
)
SIZES = st.none() | st.integers(-5, 400).map(str) | st.text("0123456789-x", max_size=20)
ENCODINGS = st.sampled_from(["", "", "", "gzip", "deflate", "br"])


def test_any_body_is_answered_with_200_or_a_4xx_that_says_why(serving: Serving) -> None:
    @settings(max_examples=400, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["kinds", "raw", "slow"]), REQUESTS, st.binary(max_size=80), SIZES, ENCODINGS)
    def ask(model: str, request: Any, data: bytes, size: str | None, encoding: str) -> None:
        head = json.dumps(request).encode()
        headers = {"content-encoding": encoding} if encoding else {}
        if size is not None:
            headers["Inference-Header-Content-Length"] = size or str(len(head))
        answer = serving.http.post(f"/v2/models/{model}/infer", content=head + data, headers=headers)
        assert answer.status_code < 500, (head, data, headers, answer.text)
        if answer.status_code != 200:
            error_of(answer)

    ask()
    assert outputs(serving.http.post(KINDS, json=kinds("a")))["text"] == ["A"]
    assert serving.gauge("requests_pending") == 0
