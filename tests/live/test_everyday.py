"""What people expect of a service: asked of a real server, as their clients would."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.live.serving import MODELS, Serving

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving(MODELS / "everyday.py", "--workers", "1") as serving:
        yield serving


@pytest.mark.parametrize("source", ["computed", "stored"])
def test_a_reply_has_its_own_media_type_and_headers(served: Serving, source: str) -> None:
    answer = served.http.post("/predictions/card", json={"name": "Ada", "id": "1"})
    assert (answer.status_code, answer.content) == (200, b"<svg>Ada</svg>")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-disposition"] == 'inline; filename="card.svg"'
    assert answer.headers["timebound-source"] == source


def test_a_reply_goes_into_other_protocols_as_its_body(served: Serving) -> None:
    answer = served.http.post("/v1/models/card:predict", json={"instances": [{"name": "Ada"}]})
    assert answer.json() == {"predictions": [{"b64": "PHN2Zz5BZGE8L3N2Zz4="}]}
    tensor = {"name": "name", "datatype": "BYTES", "shape": [1], "data": ["Ada"]}
    answer = served.http.post("/v2/models/card/infer", json={"inputs": [tensor]})
    assert answer.json()["outputs"][0]["data"] == ["<svg>Ada</svg>"]


def test_the_api_document_says_what_models_answer(served: Serving) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    content = {name: paths[f"/predictions/{name}"]["post"]["responses"]["200"]["content"] for name in ("card", "mood")}
    assert list(content["card"]) == ["image/svg+xml"]
    assert content["mood"]["application/json"]["example"] == {"label": "good", "letters": 4}
    assert "$ref" in content["mood"]["application/json"]["schema"]


def test_json_comes_parsed_without_a_request_class(served: Serving) -> None:
    for body in ({"words": ["b", {"c": 1.5}]}, [1, 2], "text"):
        assert served.http.post("/predictions/plain", json=body).json() == body
    broken = served.http.post("/predictions/plain", content=b'{"a":', headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "malformed_json")


def test_parsed_json_comes_by_other_protocols_too(served: Serving) -> None:
    answer = served.http.post("/v1/models/plain:predict", json={"instances": [[1], {"a": 2}]})
    assert answer.json() == {"predictions": [[1], {"a": 2}]}
    tensor = {"name": "body", "datatype": "BYTES", "shape": [1], "data": ['{"a": 2}']}
    answer = served.http.post("/v2/models/plain/infer", json={"inputs": [tensor]})
    assert answer.json()["outputs"][0]["data"] == [2]


@pytest.mark.parametrize("body", [{"x": 3}, {"x": 3.0}, {"x": "3"}, {"x": "3.0", "y": "0"}])
def test_a_lax_model_takes_numbers_however_they_are_written(served: Serving, body: object) -> None:
    assert served.http.post("/predictions/lax", json=body).json() == {"x": 3, "y": 0}


def test_a_lax_model_refuses_what_is_no_number(served: Serving) -> None:
    told = served.http.post("/predictions/lax", json={"x": "three"})
    assert (told.status_code, told.json()["code"], told.json()["field"]) == (422, "bad_input", "x")


def test_a_pydantic_model_is_filled_and_refuses_by_itself(served: Serving) -> None:
    def ask(body: object) -> httpx.Response:
        return served.http.post("/predictions/ordered", json=body)

    assert ask({"count": "2", "remark": "soon"}).json() == {"count": 2, "note": "soon"}
    told = ask({"count": 0})
    assert (told.status_code, told.json()["field"]) == (422, "count")
    assert told.json()["detail"] == "Input should be greater than or equal to 1"
    assert ask({}).json()["field"] == "count"
    tensor = {"name": "count", "datatype": "INT64", "shape": [1], "data": [4]}
    answer = served.http.post("/v2/models/ordered/infer", json={"inputs": [tensor]})
    assert answer.json()["outputs"][0]["data"] == [4]
