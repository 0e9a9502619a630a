"""From the command to the first answer, for every kind of target; what an answer carries; what pages need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually

from timebound.demo.app import LABELS, SAMPLES

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    with Serving("demo") as serving:
        yield serving


def save_doubler(path: Path) -> None:
    """An ONNX file that takes two numbers and gives them back doubled."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubler", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def body(sample: int, key: str) -> dict[str, str]:
    return {"esun_uuid": key, "image": SAMPLES[sample]["image"]}


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_the_demo_reads_its_samples(demo: Serving, sample: int) -> None:
    answer = demo.http.post("/inference", json=body(sample, f"sample-{sample}"))
    assert answer.status_code == 200
    title = SAMPLES[sample]["title"]
    assert answer.json()["answer"] == (title if title in LABELS else "isnull")


def test_an_answer_says_how_it_came_about(demo: Serving) -> None:
    answer = demo.http.post("/inference", json=body(3, "how"))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["timebound-quality"] == "full"
    assert answer.headers["timebound-members"] == "3/3"
    assert answer.headers["timebound-source"] == "computed"
    assert answer.headers["timebound-batch"] == "1"
    stages = re.findall(r"(\w+);dur=([0-9.]+)", answer.headers["server-timing"])
    assert [name for name, _ in stages] == ["queue", "prepare", "infer", "finish"]
    assert 0 < sum(float(ms) for _, ms in stages) < 20_000


def test_a_request_id_is_echoed(demo: Serving) -> None:
    sent = {"x-request-id": "order-66"}
    answered = demo.http.post("/inference", json=body(0, "echo"), headers=sent)
    refused = demo.http.post("/inference", json={"esun_uuid": "echo", "image": 5}, headers=sent)
    assert answered.headers["x-request-id"] == "order-66"
    assert refused.headers["x-request-id"] == refused.json()["request_id"] == "order-66"


def test_a_request_without_an_id_is_given_one_of_its_own(demo: Serving) -> None:
    ids = [demo.http.post("/inference", json=body(0, "ids")).headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3


def test_the_model_list_tells_how_to_call_a_model(demo: Serving) -> None:
    (model,) = demo.http.get("/v1/models").json()["models"]
    assert model["name"] == "handwriting"
    assert model["state"] == "ready"
    assert model["members"] == 3
    assert set(model["request_schema"]["$defs"]["Request"]["properties"]) == {
        "esun_uuid",
        "esun_timestamp",
        "image",
        "retry",
    }
    assert demo.http.post(model["paths"][0], json=model["example"]).status_code == 200


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_a_page_and_all_it_loads_come_from_this_server(demo: Serving, page: str) -> None:
    answer = demo.http.get(page)
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.search(r"(https?:)?//[\w.]+", answer.text)
    parts = [part for part in re.findall(r'(?:src|href)="([^"]+)"', answer.text) if part.startswith("/ui/")]
    assert parts
    for part in parts:
        assert demo.http.get(part).status_code == 200, part


def test_scripts_of_the_page_load_only_files_that_are_there(demo: Serving) -> None:
    seen, waiting = set(), ["/ui/app.js", "/ui/docs.js"]
    while waiting:
        script = waiting.pop()
        seen.add(script)
        answer = demo.http.get(script)
        assert answer.status_code == 200, script
        imported = [f"/ui/{name}" for name in re.findall(r'from "\./([^"]+)"', answer.text)]
        waiting += [name for name in imported if name not in seen]
    assert len(seen) > 2


def test_the_openapi_document_lists_the_model_and_the_probes(demo: Serving) -> None:
    document = demo.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    assert {"/inference", "/predictions/handwriting", "/livez", "/readyz", "/metrics", "/v1/models"} <= set(
        document["paths"]
    )


def test_metrics_count_the_answers(demo: Serving) -> None:
    demo.http.post("/inference", json=body(1, "counted"))
    text = demo.http.get("/metrics").text
    assert re.search(
        r'^timebound_requests_total{code="ok",model="handwriting",status="200",version="1"} [1-9]', text, re.M
    )
    assert re.search(r'^timebound_request_seconds_bucket{le="\+Inf",model="handwriting",version="1"} [1-9]', text, re.M)


def test_a_python_file_is_served_at_its_own_path_and_by_its_name() -> None:
    with Serving(MODELS / "echo.py") as serving:
        at_path = serving.http.post("/inference", json={"value": 7, "id": "a"})
        by_name = serving.http.post("/predictions/echo", json={"value": 8, "id": "b"})
        (model,) = serving.http.get("/v1/models").json()["models"]
    assert at_path.json() == {"value": 7, "id": "a"}
    assert by_name.json() == {"value": 8, "id": "b"}
    assert (model["key"], model["paths"]) == ("id", ["/inference", "/predictions/echo"])


def test_an_onnx_file_is_served_by_its_signature(tmp_path: Path) -> None:
    save_doubler(tmp_path / "doubler.onnx")
    with Serving(tmp_path / "doubler.onnx") as serving:
        right = serving.http.post("/predictions/doubler", json={"x": [1, 2.5]})
        wrong = serving.http.post("/predictions/doubler", json={"x": [1, 2, 3]})
    assert right.json() == {"y": [2.0, 5.0]}
    assert (wrong.status_code, wrong.json()["field"]) == (422, "x")


def test_a_folder_is_served_with_the_newest_version_of_each_model(tmp_path: Path) -> None:
    for version in ("1", "9", "10"):
        save_doubler(tmp_path / "doubler" / version / "model.onnx")
    (tmp_path / "echo" / "3").mkdir(parents=True)
    (tmp_path / "echo" / "3" / "app.py").write_text((MODELS / "echo.py").read_text())
    with Serving(tmp_path) as serving:
        doubled = serving.http.post("/predictions/doubler", json={"x": [1, 2]})
        echoed = serving.http.post("/predictions/echo", json={"value": 3})
        versions = {model["name"]: model["version"] for model in serving.http.get("/v1/models").json()["models"]}
    assert doubled.json() == {"y": [2.0, 4.0]}
    assert echoed.json() == {"value": 3, "id": None}
    assert versions["doubler"] == "10"


def test_a_folder_names_the_version_of_a_python_model_too(tmp_path: Path) -> None:
    (tmp_path / "echo" / "3").mkdir(parents=True)
    (tmp_path / "echo" / "3" / "app.py").write_text((MODELS / "echo.py").read_text())
    with Serving(tmp_path) as serving:
        (model,) = serving.http.get("/v1/models").json()["models"]
    assert model["version"] == "3"


def test_a_server_is_live_while_it_loads_and_ready_after_the_warm_up(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", environment={"LOAD_GATE": str(gate.path)}, until_ready=False) as serving:
        assert serving.http.get("/livez").status_code == 200
        assert serving.http.get("/readyz").json() == {"status": "not_ready", "reason": "loading"}
        for path in ("/predictions/waits", "/wait"):
            early = serving.http.post(path, json={"value": 1})
            assert (early.status_code, early.json()["code"]) == (503, "not_ready")
            assert int(early.headers["retry-after"]) >= 1
        gate.open()
        eventually(serving.is_ready, "readiness after the gate is open")
        assert serving.http.post("/wait", json={"value": 1}).json() == {"value": 1}
