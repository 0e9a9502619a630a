"""A retry may write its tensors in another way: JSON, binary data, gRPC. It is one request, answered as it asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.live.serving import Serving

pytestmark = pytest.mark.live

COUNTING = """
import numpy as np
import timebound as tb

runs = 0

class Double(tb.Model):
    deadline = 20.0

    class Request(tb.Struct):
        rows: list[float]
        word: str = ""

    def infer(self, batch):
        global runs
        runs += len(batch)
        return [{"rows": np.array(one.rows) * 2, "word": one.word, "run": runs} for one in batch]
"""
ROWS = np.array([[0.1, -2.5, 1e30], [4.0, 0.0, 7.0]])
PATH = "/v2/models/double/infer"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("double")
    (folder / "app.py").write_text(COUNTING)
    with Serving(folder / "app.py", "--workers", "1", "--grpc-port", "0") as serving:
        yield serving
        assert "Traceback" not in serving.said


def as_json(serving: Serving, key: str, rows: Any = ROWS) -> httpx.Response:
    inputs = [
        {"name": "rows", "datatype": "FP64", "shape": [2, 3], "data": rows.tolist()},
        {"name": "word", "datatype": "BYTES", "shape": [2], "data": ["\u00e4", ""]},
    ]
    return serving.http.post(PATH, json={"inputs": inputs}, headers={"idempotency-key": key})


def as_binary(serving: Serving, key: str) -> httpx.Response:
    words = b"\2\0\0\0\xc3\xa4\0\0\0\0"
    head = {
        "inputs": [
            {"name": "word", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(words)}},
            {"name": "rows", "datatype": "FP64", "shape": [2, 3], "parameters": {"binary_data_size": ROWS.nbytes}},
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    headers = {"idempotency-key": key, "inference-header-content-length": str(len(text))}
    return serving.http.post(PATH, content=text + words + ROWS.tobytes(), headers=headers)


def told_in_json(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    told = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    return [told["rows"], told["word"], told["run"]]


def told_in_binary(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    size = int(answer.headers["inference-header-content-length"])
    at, told = size, {}
    for output in json.loads(answer.content[:size])["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        told[output["name"]] = answer.content[at:end]
        at = end
    numbers = [np.frombuffer(told[name], kind).tolist() for name, kind in (("rows", "<f8"), ("run", "<i8"))]
    assert told["word"] == b"\2\0\0\0\xc3\xa4\0\0\0\0"
    return [numbers[0], ["\u00e4", ""], numbers[1]]


def over_grpc(serving: Serving, key: str) -> list[Any]:
    kind: Any = triton
    at = str(serving.wait_for_line("listening for gRPC")["at"]).partition("://")[2]
    rows = kind.InferInput("rows", [2, 3], "FP64")
    rows.set_data_from_numpy(ROWS)
    word = kind.InferInput("word", [2], "BYTES")
    word.set_data_from_numpy(np.array(["\u00e4".encode(), b""], object))
    with kind.InferenceServerClient(at) as client:
        answer = client.infer("double", [rows, word], headers={"idempotency-key": key})
    words = [text.decode() for text in answer.as_numpy("word").ravel().tolist()]
    return [answer.as_numpy("rows").ravel().tolist(), words, answer.as_numpy("run").ravel().tolist()]


def test_a_retry_in_another_form_gets_the_same_answer_in_that_form(serving: Serving) -> None:
    ways: list[Callable[[str], list[Any]]] = [
        lambda key: told_in_json(as_json(serving, key)),
        lambda key: told_in_binary(as_binary(serving, key)),
        lambda key: over_grpc(serving, key),
    ]
    for number in range(len(ways)):
        answers = [way(f"k{number}") for way in [*ways[number:], *ways[:number]]]
        assert answers == [answers[0]] * len(ways), "computed once: each run has a number"
        assert answers[0][0] == (ROWS * 2).ravel().tolist()
    assert as_json(serving, "k0", ROWS + 1).status_code == 422


def test_a_long_answer_is_written_anew_too(tmp_path: Path) -> None:
    app = "import numpy as np\nimport timebound as tb\n\ndef many(n: int):\n    return {'y': np.arange(n) / 8}\n"
    (tmp_path / "app.py").write_text(app)
    with Serving(tmp_path / "app.py", "--workers", "1") as serving:
        inputs = [{"name": "n", "datatype": "INT64", "shape": [1], "data": [100_000]}]
        path, headers = "/v2/models/many/infer", {"idempotency-key": "long"}
        first = serving.http.post(path, json={"inputs": inputs}, headers=headers)
        body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        second = serving.http.post(path, json=body, headers=headers)
        size = int(second.headers["inference-header-content-length"])
        assert second.headers["timebound-source"] == "stored"
        expected = (np.arange(100_000) / 8).tolist()
        assert first.json()["outputs"][0]["data"] == expected
        assert np.frombuffer(second.content[size:], "<f8").tolist() == expected
