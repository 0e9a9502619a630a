"""What people expect of a service: asked of a real server, as their clients would."""

from __future__ import annotations

from collections.abc import Iterator

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
