"""What a request in tensors says besides them reaches the model: fields of a class, headers of a handler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.live.serving import Serving
from tests.models import archives

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

APP = """
from typing import Any

import timebound as tb

class Told(tb.Model):
    deadline = 20.0
    example = {"text": "a"}

    class Request(tb.Struct):
        text: str
        top: int = 1
        parameters: dict[str, Any] = {}

    def prepare(self, request):
        return [request.text, request.top, request.parameters]

    def infer(self, batch):
        return batch
"""
SAID = {"top": 3, "style": "brief", "strict": True, "heat": 0.5, "timeout": 15_000_000, "binary_data_output": False}
METHOD = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("told")
    (folder / "app.py").write_text(APP)
    with Serving(folder / "app.py", "--workers", "1", "--grpc-port", "0") as serving:
        yield serving


def texts(name: str, *each: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(each)], "data": list(each)}


def test_a_field_called_parameters_gets_those_that_no_other_field_is_called(served: Serving) -> None:
    asked = {"inputs": [texts("text", "a", "b")], "parameters": SAID}
    (answer,) = served.http.post("/v2/models/told/infer", json=asked).json()["outputs"]
    others = '{"style":"brief","strict":true,"heat":0.5}'
    assert answer["data"] == [f'["a",3,{others}]', f'["b",3,{others}]']
    plain = served.http.post("/v2/models/told/infer", json={"inputs": [texts("text", "a")]}).json()["outputs"]
    assert plain[0]["data"] == ['["a",1,{}]']
    native = served.http.post("/predictions/told", json={"text": "a", "parameters": {"style": "brief"}})
    assert native.json() == ["a", 1, {"style": "brief"}]


def test_it_is_the_same_over_grpc(served: Serving) -> None:
    request = message("inference.ModelInferRequest")(model_name="told", raw_input_contents=[b"\1\0\0\0a"])
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.parameters["style"].string_param = "brief"
    where = str(served.wait_for_line("listening for gRPC")["at"]).removeprefix("grpc://")
    with grpc.insecure_channel(where) as channel:
        answer = channel.unary_unary(METHOD)(request.SerializeToString(), timeout=20)
    (raw,) = message("inference.ModelInferResponse").FromString(answer).raw_output_contents
    assert raw[4:] == b'["a",1,{"style":"brief"}]'


def test_a_handler_finds_them_among_the_headers_of_its_requests(tmp_path: Path) -> None:
    archive = archives.custom(tmp_path)
    with Serving(archive, "--workers", "1", environment={"XDG_CACHE_HOME": str(tmp_path)}) as serving:

        def seen(**more: Any) -> list[Any]:
            asked = {"inputs": [texts("body", "x", "y")], **more}
            answer = serving.http.post("/v2/models/custom/infer", json=asked)
            assert answer.status_code == 200, answer.text
            return [json.loads(text) for text in answer.json()["outputs"][0]["data"]]

        for each in seen(parameters={"X-Mine": "yes", "url_path": 7, "explain": True}):
            assert each["headers"] == {"X-Mine": "yes", "url_path": "7", "explain": "true", "Content-Type": None}
        assert seen()[1]["headers"]["X-Mine"] is None


def test_the_highest_values_of_what_has_no_values_are_refused(tmp_path: Path) -> None:
    archive = archives.custom(tmp_path)
    wanted = [{"name": "answer", "parameters": {"classification": 3}}]
    with Serving(archive, "--workers", "1", environment={"XDG_CACHE_HOME": str(tmp_path)}) as serving:
        answer = serving.http.post("/v2/models/custom/infer", json={"inputs": [texts("body", "x")], "outputs": wanted})
        assert answer.status_code == 400
        assert "has no highest values; leave classification out" in answer.json()["error"]
