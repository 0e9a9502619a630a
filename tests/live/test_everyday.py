"""What people expect of a service: asked of a real server, as their clients would."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.live.serving import MODELS, Serving

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving(MODELS / "everyday.py", "--workers", "1", "--max-body", "24000000") as serving:
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
    assert list(content["card"]) == ["image/svg+xml", "text/event-stream"]
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


@pytest.mark.parametrize("size", [100, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("name", ["image", "upload"])
def test_a_file_of_a_form_fills_the_picture_field(served: Serving, size: int, name: str) -> None:
    sent = {"count": "3", "sharp": "on", "tags": ["a", "b"]}
    answer = served.http.post("/predictions/photo", files={name: ("a.png", bytes(size))}, data=sent)
    assert answer.json() == {"size": size, "count": 3, "sharp": True, "tags": ["a", "b"]}


@pytest.mark.parametrize("padding", [0, 3_000], ids=["small", "large"])
def test_fields_of_a_form_fill_the_request(served: Serving, padding: int) -> None:
    answer = served.http.post("/predictions/photo", data={"count": "3", "title": "t" * padding, "tags": '["x"]'})
    assert answer.json() == {"size": 0, "count": 3, "sharp": False, "tags": ["x"]}


def test_a_field_of_a_form_that_does_not_fit_is_named(served: Serving) -> None:
    for padding in ("", "t" * 3_000):
        told = served.http.post("/predictions/photo", data={"count": "three", "title": padding})
        assert (told.status_code, told.json()["code"], told.json()["field"]) == (422, "bad_input", "count")


def test_json_that_is_sent_as_a_form_is_told_so(served: Serving) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # as `curl -d` has it
    told = served.http.post("/predictions/photo", content=b'{"count": 3}', headers=form)
    assert (told.status_code, told.json()["code"]) == (415, "unsupported_media_type")
    assert "content-type: application/json" in told.json()["detail"]


@pytest.mark.parametrize("size", [100, 300_000, 20_000_000], ids=["small", "large", "very large"])
def test_the_file_of_a_form_is_a_raw_body(served: Serving, size: int) -> None:
    answer = served.http.post(
        "/predictions/bytes",
        files={"f": ("a", b"PNG!" + bytes(size - 4))},
        headers={"timebound-timeout-ms": "20000"},
    )
    assert answer.json() == {"size": size, "first": "PNG!"}


def test_two_files_are_no_raw_body(served: Serving) -> None:
    told = served.http.post("/predictions/bytes", files=[("f", ("a", b"1")), ("f", ("b", b"2"))])
    assert (told.status_code, told.json()["code"]) == (422, "bad_input")
    assert "the form has 2 files" in told.json()["detail"]


def test_a_form_that_is_cut_off_is_refused(served: Serving) -> None:
    for padding in (b"", b"x" * 3_000):
        cut = b'--b\r\ncontent-disposition: form-data; name="count"\r\n\r\n' + padding
        told = served.http.post(
            "/predictions/photo", content=cut, headers={"content-type": "multipart/form-data; boundary=b"}
        )
        assert (told.status_code, told.json()["code"]) == (422, "bad_input")
        assert "the form is cut off" in told.json()["detail"]


def test_a_form_names_its_request_by_its_key_as_json_does(served: Serving) -> None:
    form = served.http.post("/predictions/photo", data={"id": "same", "count": "2"})
    json = served.http.post("/predictions/photo", json={"id": "same", "count": 2})
    assert (form.headers["timebound-source"], json.headers["timebound-source"]) == ("computed", "stored")


def test_a_query_fills_the_request(served: Serving) -> None:
    answer = served.http.get("/predictions/photo", params={"count": 2, "sharp": "true", "tags": ["a", "ü"]})
    assert answer.json() == {"size": 0, "count": 2, "sharp": True, "tags": ["a", "ü"]}
    assert served.http.get("/predictions/photo").json()["count"] == 1
    told = served.http.get("/predictions/photo?count=x")
    assert (told.status_code, told.json()["field"]) == (422, "count")
    told = served.http.get("/predictions/photo?" + "a=1&" * 200)
    assert "send a POST" in told.json()["detail"]


def test_a_model_is_asked_by_get_only_if_it_says_so(served: Serving) -> None:
    assert served.http.get("/predictions/mood?text=a").status_code == 405
    assert served.http.post("/predictions/mood?text=a", json={"text": "b"}).status_code == 200


def test_the_api_document_tells_of_forms_and_queries(served: Serving) -> None:
    path = served.http.get("/openapi.json").json()["paths"]["/predictions/photo"]
    form = path["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["image"] == {"type": "string", "format": "binary"}
    asked = [each["name"] for each in path["get"]["parameters"] if each.get("in") == "query"]
    assert asked == ["image", "count", "sharp", "tags", "title", "id"]


def test_a_connection_of_http_1_0_is_kept_if_its_client_asks(served: Serving) -> None:
    body = b'{"text": "a"}'
    head = b"POST /predictions/mood HTTP/1.0\r\nContent-Length: %d\r\n" % len(body)
    with served.wire() as wire:
        for _ in range(2):
            wire.send(head, b"Connection: Keep-Alive\r\n\r\n", body)
            assert wire.read().headers["connection"] == "keep-alive"
        wire.send(head, b"\r\n", body)
        assert wire.read().headers["connection"] == "close"
        assert wire.read_to_end() == b""


def test_a_list_of_bodies_is_answered_as_a_list(served: Serving) -> None:
    answer = served.http.post("/predictions/mood:batch", json=[{"text": "a" * count} for count in range(200)])
    assert (answer.status_code, answer.headers["timebound-failed"]) == (200, "0")
    assert [each["letters"] for each in answer.json()] == list(range(200))


def test_an_item_of_a_list_fails_by_itself(served: Serving) -> None:
    answer = served.http.post("/predictions/mood:batch", json=[{"text": "a"}, {"text": 1}, 7, {"text": "abc"}])
    first, second, third, fourth = answer.json()
    assert (first["letters"], fourth["letters"]) == (1, 3)
    assert (second["error"]["status"], second["error"]["code"], second["error"]["field"]) == (422, "bad_input", "text")
    assert third["error"]["code"] == "bad_input"
    assert (answer.status_code, answer.headers["timebound-failed"]) == (200, "2")


def test_raw_bodies_and_pictures_go_through_lists_as_base64(served: Serving) -> None:
    answer = served.http.post("/predictions/bytes:batch", json=["text", {"b64": "UE5HIQ=="}])
    assert answer.json() == [{"size": 4, "first": "text"}, {"size": 4, "first": "PNG!"}]
    answer = served.http.post("/predictions/card:batch", json=[{"name": "Ada"}])
    assert answer.json() == [{"b64": "PHN2Zz5BZGE8L3N2Zz4="}]


def test_what_is_no_list_or_too_long_a_one_is_refused(served: Serving) -> None:
    for body in ({"text": "a"}, [], [{"text": "a"}] * 257, "x" * 2_000):
        told = served.http.post("/predictions/mood:batch", json=body)
        assert (told.status_code, told.json()["code"]) == (422, "bad_input")


def test_the_items_of_a_list_have_the_deadline_of_the_request(served: Serving) -> None:
    told = served.http.post(
        "/predictions/mood:batch", json=[{"text": "a"}] * 2, headers={"timebound-timeout-ms": "0.001"}
    )
    assert told.status_code in (429, 504)
