"""Thin protocols beside the two large ones: TensorFlow Serving's, which is KServe's first, and SageMaker's paths."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import MODELS, Serving
from tests.models.onnx_files import save_doubler, save_sum_and_difference

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("files")
    save_doubler(folder / "twice" / "3" / "model.onnx")
    save_sum_and_difference(folder / "both" / "1" / "model.onnx")
    with Serving(folder, "--workers", "1", "--deadline", "20") as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.fixture(scope="module")
def classes() -> Iterator[Serving]:
    with Serving(MODELS / "tensors.py", "--workers", "1") as serving:
        yield serving
        assert "Traceback" not in serving.said


def test_instances_become_predictions_and_columns_become_columns(files: Serving) -> None:
    ask = files.http.post
    rows = [[1, 2, 3], [4, 5, 6]]
    twice = {"predictions": [[2, 4, 6], [8, 10, 12]]}
    for version in ("", "/versions/0", "/versions/3"):
        assert ask(f"/v1/models/twice{version}:predict", json={"instances": rows}).json() == twice
    assert ask("/v1/models/twice:predict", json={"instances": [{"x": row} for row in rows]}).json() == twice
    assert ask("/v1/models/twice:predict", json={"inputs": rows}).json() == {"outputs": twice["predictions"]}
    columns = {"a": [[1, 2], [3, 4]], "b": [[1, 1], [1, 1]]}
    assert ask("/v1/models/both:predict", json={"inputs": columns}).json() == {
        "outputs": {"sum": [[2, 3], [4, 5]], "difference": [[0, 1], [2, 3]]}
    }
    assert ask("/v1/models/both:predict", json={"instances": [{"a": [1, 2], "b": [1, 1]}]}).json() == {
        "predictions": [{"sum": [2, 3], "difference": [0, 1]}]
    }


def test_a_slash_at_the_end_of_a_path_does_no_harm(files: Serving) -> None:
    ask = files.http.post
    rows, row = {"instances": [[1, 2, 3]]}, {"x": [1, 2, 3]}
    for path in ("/v1/models/twice:predict/", "/v1/models/twice/versions/3:predict/"):
        assert ask(path, json=rows).json() == {"predictions": [[2, 4, 6]]}
    for path in (
        "/invocations/?model_name=twice",
        "/models/twice/invoke/",
        "/predictions/twice/",
        "/predictions/twice/3/",
    ):
        assert ask(path, json=row).json() == {"y": [2, 4, 6]}
    assert ask("/predictions/twice:batch/", json=[row]).json() == [{"y": [2, 4, 6]}]
    tensors = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    for path in ("/v2/models/twice/infer/", "/v2/models/twice/versions/3/infer/"):
        assert ask(path, json=tensors).json()["outputs"][0]["data"] == [2, 4, 6]


def test_large_and_packed_bodies_are_read_the_same(files: Serving) -> None:
    body = json.dumps({"instances": [[1, 2, 3]] * 250}).encode()
    for content, headers in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
        answer = files.http.post("/v1/models/twice:predict", content=content, headers=headers)
        assert answer.json() == {"predictions": [[2, 4, 6]] * 250}


def test_raw_bodies_are_texts_or_base64(classes: Serving) -> None:
    there = base64.b64encode(b"\xff\x00").decode()
    answer = classes.http.post("/v1/models/raw:predict", json={"instances": ["count", {"b64": there}]})
    back = base64.b64encode(b"\x00\xff").decode()
    assert answer.json() == {"predictions": [{"bytes": 5}, {"b64": back}]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models/nobody:predict", {"instances": [1]}, 404),
        ("/v1/models/twice/versions/9:predict", {"instances": [1]}, 404),
        ("/v1/models/twice:predict", {}, 400),
        ("/v1/models/twice:predict", {"instances": []}, 400),
        ("/v1/models/twice:predict", {"instances": 3}, 400),
        ("/v1/models/twice:predict", {"instances": [[1, 2]]}, 400),
        ("/v1/models/twice:predict", {"instances": [{"z": 1}]}, 400),
        ("/v1/models/both:predict", {"instances": [[1, 2]]}, 400),
        ("/v1/models/both:predict", {"inputs": {"a": [[1, 2]], "b": []}}, 400),
        ("/v1/models/both:predict", {"inputs": 3}, 400),
    ],
)
def test_what_is_wrong_is_said_in_one_form(files: Serving, path: str, body: Any, status: int) -> None:
    answer = files.http.post(path, json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("verb", ["classify", "regress", "explain"])
@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_verbs_that_are_not_supported_are_refused_so(files: Serving, verb: str, version: str) -> None:
    answer = files.http.post(f"/v1/models/twice{version}:{verb}", json={"examples": [{}]})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert f":{verb} is not supported" in answer.json()["error"]
    nobody = files.http.post(f"/v1/models/nobody{version}:{verb}", json={"examples": [{}]})
    assert (nobody.status_code, "unknown model" in nobody.json()["error"]) == (404, True)


def test_a_parameter_is_no_input_of_a_file(files: Serving) -> None:
    one = {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    answer = files.http.post("/v2/models/both/infer", json={"inputs": [one], "parameters": {"b": [1, 1]}})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert "'b'" in answer.json()["error"]


def test_a_model_tells_its_state(files: Serving) -> None:
    told = files.http.get("/v1/models/twice").json()
    assert (told["ready"], told["model_version_status"][0]["state"]) == (True, "AVAILABLE")
    assert told["model_version_status"][0]["version"] == "3"


def test_sagemaker_asks_the_only_model(files: Serving, tmp_path: Path) -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        assert serving.http.get("/ping").status_code == 200
        assert serving.http.post("/invocations", json={"value": 3}).json() == {"value": 3, "id": None}
    several = files.http.post("/invocations", json={"x": [1, 2, 3]})
    assert (several.status_code, "ask one at /models/NAME/invoke" in several.json()["detail"]) == (404, True)
    assert files.http.post("/invocations?model_name=twice", json={"x": [1, 2, 3]}).json() == {"y": [2, 4, 6]}
    assert files.http.post("/models/twice/invoke", json={"x": [1, 2, 3]}).json() == {"y": [2.0, 4.0, 6.0]}
    nobody = files.http.post("/models/nobody/invoke", json={"x": [1, 2, 3]})
    assert (nobody.status_code, nobody.json()["code"]) == (404, "unknown_model")
    assert "there is no model 'nobody'" in nobody.json()["detail"]
    assert files.http.get("/models/twice/invoke").status_code == 405
