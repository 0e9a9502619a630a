"""The points of the Open Inference Protocol's specification, each as a check on a real server, over HTTP and gRPC.

A point's name says what the specification asks for. What is not supported stands in `REFUSED`, with how that is said.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from tests.live.serving import MODELS, Serving

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

SERVICE = "/inference.GRPCInferenceService/"
PARAMETER = "priority"


class Ways(NamedTuple):
    """How the server is asked."""

    http: httpx.Client
    channel: Any

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), answer.text
        return answer.json()

    def infer(self, path: str = "kinds", status: int = 200, **more: Any) -> Any:
        answer = self.http.post(f"/v2/models/{path}/infer", json=asked(**more))
        assert answer.status_code == status, answer.text
        return answer.json()

    def call(self, method: str, metadata: Any = None, **more: Any) -> Any:
        body = message(f"inference.{method}Request")(**more).SerializeToString()
        answer = self.channel.unary_unary(SERVICE + method)(body, timeout=20, metadata=metadata)
        return message(f"inference.{method}Response").FromString(answer)

    def stream(self, *requests: Any) -> list[Any]:
        """The answers of ModelStreamInfer, in order."""
        ask = self.channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        answers = ask(iter([request.SerializeToString() for request in requests]), timeout=20)
        return [message("inference.ModelStreamInferResponse").FromString(answer) for answer in answers]

    def refused(self, method: str, request: Any) -> grpc.StatusCode:
        call = self.channel.unary_unary(SERVICE + method).future(request.SerializeToString(), timeout=20)
        code: grpc.StatusCode = call.code()
        return code


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with Serving(MODELS / "tensors.py", "--workers", "1", "--grpc-port", "0", "--admin-token", "t0ken") as serving:
        where = str(serving.wait_for_line("listening for gRPC")["at"]).removeprefix("grpc://")
        with grpc.insecure_channel(where) as channel:
            yield Ways(serving.http, channel)
        assert "Traceback" not in serving.said


def tensor(name: str, datatype: str, shape: list[int], data: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


def asked(**more: Any) -> dict[str, Any]:
    inputs = [
        tensor("text", "BYTES", [2], ["a", "b"]),
        tensor("number", "FP64", [2], [0.5, 1.5]),
        tensor("counts", "INT64", [2, 2], [1, 2, 3, 4]),
    ]
    return {"inputs": inputs, **more}


def rpc(model: str = "kinds", **more: Any) -> Any:
    request = message("inference.ModelInferRequest")(model_name=model, **more)
    for name, datatype, shape, kind, values in (
        ("text", "BYTES", [1], "bytes_contents", [b"a"]),
        ("number", "FP64", [1], "fp64_contents", [0.5]),
        ("counts", "INT64", [1, 2], "int64_contents", [1, 2]),
    ):
        made = request.inputs.add(name=name, datatype=datatype, shape=shape)
        getattr(made.contents, kind).extend(values)
    return request


def rpc_infer(ways: Ways, request: Any) -> Any:
    body = ways.channel.unary_unary(f"{SERVICE}ModelInfer")(request.SerializeToString(), timeout=20)
    return message("inference.ModelInferResponse").FromString(body)


def named(answer: Any) -> dict[str, Any]:
    return {output["name"]: output for output in answer["outputs"]}


COUNTS = tensor("counts", "INT64", [2, 1], [1, 2])
_JSON = {"inputs": [{"name": "body", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}]}
_HEAD = {"Inference-Header-Content-Length": str(len(json.dumps(_JSON)))}


def _binary(data: bytes) -> bytes:
    return json.dumps(_JSON).encode() + data


def binary_outputs(w: Ways) -> bool:
    """All in binary but for the one that is asked for in JSON."""
    outputs = [{"name": "number"}, {"name": "counts", "parameters": {"binary_data": False}}]
    body = asked(outputs=outputs, parameters={"binary_data_output": True})
    answer = w.http.post("/v2/models/kinds/infer", json=body)
    size = int(answer.headers["inference-header-content-length"])
    told = named(json.loads(answer.content[:size]))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert told["counts"]["data"] == [1, 2, 3, 4]
    assert told["number"]["parameters"] == {"binary_data_size": 16}
    return struct.unpack("<2d", answer.content[size:]) == (0.5, 1.5)


def raw_request(w: Ways) -> bool:
    """A body that is nothing but the data of the one input."""
    answer = w.http.post("/v2/models/raw/infer", content=b"abc", headers={"Inference-Header-Content-Length": "0"})
    return bool(answer.json()["outputs"][0]["data"] == ["cba"])


def packed(w: Ways) -> bool:
    """Both ways."""
    body = {"inputs": [tensor("body", "BYTES", [1], ["abc" * 1000])]}
    headers = {"content-encoding": "gzip", "accept-encoding": "gzip"}
    answer = w.http.post("/v2/models/raw/infer", content=gzip.compress(json.dumps(body).encode()), headers=headers)
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "accept-encoding")
    return bool(answer.json()["outputs"][0]["data"] == ["cba" * 1000])


def is_called_over_http_and_grpc(w: Ways) -> bool:
    """Unload and load, each by one protocol and seen by the other."""
    token = {"authorization": "Bearer t0ken"}
    assert w.http.post("/v2/repository/models/named/unload", headers=token).status_code == 200
    states = {each.name: each.state for each in w.call("RepositoryIndex", tuple(token.items())).models}
    assert "named" not in states or states["named"] == "UNAVAILABLE"
    assert w.http.get("/v2/models/named/ready").status_code == 404
    w.call("RepositoryModelLoad", tuple(token.items()), model_name="named")
    assert w.http.get("/v2/models/named/ready").status_code == 200
    w.call("RepositoryModelUnload", tuple(token.items()), model_name="named")
    assert w.http.get("/v2/models/named/ready").status_code == 404
    return w.http.post("/v2/repository/models/named/load", headers=token).status_code == 200


POINTS: dict[str, Callable[[Ways], object]] = {
    # health
    "GET v2/health/live says whether the server is live": lambda w: w.get("/v2/health/live")["live"] is True,
    "GET v2/health/ready says whether all models are ready": lambda w: w.get("/v2/health/ready")["ready"] is True,
    "GET v2/models/M/ready says whether a model is": lambda w: w.get("/v2/models/kinds/ready")["ready"] is True,
    "GET v2/models/M/versions/V/ready says it of a version": lambda w: w.get("/v2/models/kinds/versions/1/ready")[
        "ready"
    ],
    "ServerLive is the same over gRPC": lambda w: w.call("ServerLive").live,
    "ServerReady is the same over gRPC": lambda w: w.call("ServerReady").ready,
    "ModelReady is the same over gRPC": lambda w: w.call("ModelReady", name="kinds", version="1").ready,
    # metadata
    "GET v2 has name, version and extensions": lambda w: {"name", "version", "extensions"} == set(w.get("/v2")),
    "model metadata has name, versions, platform, inputs and outputs": lambda w: (
        {"name", "versions", "platform", "inputs", "outputs"} == set(w.get("/v2/models/kinds"))
    ),
    "a tensor's metadata has name, datatype and shape, -1 for a free dimension": lambda w: (
        {"name": "counts", "datatype": "INT64", "shape": [-1, -1]} in w.get("/v2/models/kinds")["inputs"]
    ),
    "metadata of a version": lambda w: w.get("/v2/models/kinds/versions/1")["name"] == "kinds",
    "ServerMetadata is the same over gRPC": lambda w: (
        list(w.call("ServerMetadata").extensions) == w.get("/v2")["extensions"]
    ),
    "ModelMetadata is the same over gRPC": lambda w: (
        [each.name for each in w.call("ModelMetadata", name="kinds").inputs]
        == [each["name"] for each in w.get("/v2/models/kinds")["inputs"]]
    ),
    # inference
    "POST v2/models/M/infer answers with model_name and outputs": lambda w: w.infer()["model_name"] == "kinds",
    "POST v2/models/M/versions/V/infer asks a version": lambda w: w.infer("kinds/versions/1")["model_version"] == "1",
    "id comes back": lambda w: w.infer(id="x7")["id"] == "x7",
    "without id there is none": lambda w: "id" not in w.infer(),
    "an output has name, shape, datatype and data": lambda w: (
        named(w.infer())["number"] == tensor("number", "FP64", [2], [0.5, 1.5])
    ),
    "outputs chooses and every one is answered": lambda w: (
        set(named(w.infer(outputs=[{"name": "text"}, {"name": "flag"}]))) == {"text", "flag"}
    ),
    "without outputs all come": lambda w: len(named(w.infer())) == 6,
    "data may be flat, row by row, or nested": lambda w: (
        named(w.infer())["counts"]["data"]
        == named(w.infer(inputs=[*asked()["inputs"][:2], tensor("counts", "INT64", [2, 2], [[1, 2], [3, 4]])]))[
            "counts"
        ]["data"]
    ),
    "parameters of the request reach the model, and those of inputs and of outputs are taken": lambda w: (
        w.infer(
            parameters={"temperature": 2.0, PARAMETER: 1, "any": "thing"},
            inputs=[*asked()["inputs"][:2], tensor("counts", "INT64", [2, 1], [1, 2], parameters={"any": True})],
            outputs=[{"name": "number", "parameters": {"any": 1.5}}],
        )["outputs"]
        == [tensor("number", "FP64", [2], [1.0, 3.0])]
    ),
    "what is no number comes and goes by its name": lambda w: (
        named(w.infer(inputs=[asked()["inputs"][0], tensor("number", "FP64", [2], ["NaN", "-Infinity"]), COUNTS]))[
            "number"
        ]["data"]
        == ["NaN", "-Infinity"]
    ),
    "BOOL is true and false in JSON": lambda w: named(w.infer())["flag"]["data"] == [False, False],
    "BYTES are texts in JSON": lambda w: named(w.infer())["text"]["data"] == ["A", "B"],
    "whole numbers of 64 bits stay whole": lambda w: (
        named(w.infer(inputs=[*asked()["inputs"][:2], tensor("counts", "INT64", [2, 1], [2**62 + 1, -(2**62) - 1])]))[
            "counts"
        ]["data"]
        == [2**62 + 1, -(2**62) - 1]
    ),
    "an error is a status of its own and an object with error": lambda w: (
        list(w.infer("kinds", 400, inputs=[])) == ["error"]
    ),
    "an unknown model is an error": lambda w: "unknown model" in w.infer("nobody", 404)["error"],
    "an unknown version is an error": lambda w: "version 9" in w.infer("kinds/versions/9", 404)["error"],
    "a body that is not JSON is an error": lambda w: (
        w.http.post("/v2/models/kinds/infer", content=b"{").status_code == 400
    ),
    "ModelInfer answers with raw contents in the order of outputs": lambda w: (
        len((answer := rpc_infer(w, rpc())).outputs) == len(answer.raw_output_contents)
    ),
    "ModelInfer says the id again": lambda w: rpc_infer(w, rpc(id="x8")).id == "x8",
    "ModelInfer takes raw contents for all inputs or for none": lambda w: (
        w.refused("ModelInfer", rpc(raw_input_contents=[b"1"])) == grpc.StatusCode.INVALID_ARGUMENT
    ),
    "ModelInfer of an unknown model has a status that says so": lambda w: (
        w.refused("ModelInfer", rpc("nobody")) == grpc.StatusCode.NOT_FOUND
    ),
    "ModelInfer of an unknown version has a status that says so": lambda w: (
        w.refused("ModelInfer", rpc(model_version="9")) == grpc.StatusCode.NOT_FOUND
    ),
    "ModelStreamInfer answers in order, errors in their places": lambda w: (
        [
            (each.infer_response.id, bool(each.error_message))
            for each in w.stream(rpc(id="1"), rpc("nobody"), rpc(id="3"))
        ]
        == [("1", False), ("", True), ("3", False)]
    ),
    # extensions
    "binary_data_output has outputs in binary, binary_data of one goes before it": binary_outputs,
    "a raw request is the data of its one input": raw_request,
    "requests and answers may be packed": packed,
    "classification gives the highest values with their places": lambda w: (
        named(w.infer(outputs=[{"name": "counts", "parameters": {"classification": 1}}]))["counts"]
        == tensor("counts", "BYTES", [2, 1], ["2.000000:1", "4.000000:1"])
    ),
    "timeout ends a request, in microseconds": lambda w: (
        "deadline"
        in w.http.post(
            "/v2/models/slow/infer",
            json={"inputs": [tensor("seconds", "FP64", [1], [2.0])], "parameters": {"timeout": 200_000}},
        ).json()["error"]
    ),
    "models are loaded and unloaded over HTTP and gRPC": is_called_over_http_and_grpc,
    "ModelConfig is the same over gRPC": lambda w: w.call("ModelConfig", name="kinds").config.max_batch_size == 16,
    "ModelStatistics is the same over gRPC": lambda w: (
        (told := w.call("ModelStatistics", name="kinds").model_stats[0]).name == "kinds"
        and told.last_inference == w.get("/v2/models/kinds/stats")["model_stats"][0]["last_inference"] > 0
    ),
    "binary data follows the JSON, its size in the parameters": lambda w: (
        w.http.post("/v2/models/raw/infer", content=_binary(b"\3\0\0\0abc"), headers=_HEAD).json()["outputs"][0]["data"]
        == ["cba"]
    ),
    "statistics of a model": lambda w: w.get("/v2/models/kinds/stats")["model_stats"][0]["name"] == "kinds",
    "configuration of a model": lambda w: w.get("/v2/models/kinds/config")["max_batch_size"] == 16,
    "index of the repository": lambda w: (
        w.http.post("/v2/repository/index", json={}).json()[0].keys() == {"name", "version", "state", "reason"}
    ),
    "RepositoryIndex is the same over gRPC": lambda w: w.call("RepositoryIndex").models[0].state == "READY",
}


@pytest.mark.parametrize("point", POINTS)
def test_the_specification_asks_that(point: str, ways: Ways) -> None:
    assert POINTS[point](ways)


SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
REFUSED: dict[str, Callable[[Ways], object]] = {
    "inputs by shared memory": lambda w: w.infer(
        "kinds", 400, inputs=[{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": SHARED}]
    ),
    "outputs by shared memory": lambda w: w.infer("kinds", 400, outputs=[{"name": "text", "parameters": SHARED}]),
    "sequences": lambda w: w.infer("kinds", 400, parameters={"sequence_id": 7, "sequence_start": True}),
    "registering shared memory": lambda w: (
        w.http.post("/v2/systemsharedmemory/region/r/register", json={}).status_code == 404
    ),
    "trace settings": lambda w: w.http.get("/v2/trace/setting").status_code == 404,
    "log settings": lambda w: w.http.get("/v2/logging").status_code == 404,
    "generate": lambda w: w.http.post("/v2/models/kinds/generate", json={}).status_code == 404,
    "shared memory over gRPC": lambda w: w.refused("SystemSharedMemoryStatus", rpc()) == grpc.StatusCode.UNIMPLEMENTED,
    "trace settings over gRPC": lambda w: w.refused("TraceSetting", rpc()) == grpc.StatusCode.UNIMPLEMENTED,
}


@pytest.mark.parametrize("point", REFUSED)
def test_it_is_not_supported_and_said_so(point: str, ways: Ways) -> None:
    assert REFUSED[point](ways)
