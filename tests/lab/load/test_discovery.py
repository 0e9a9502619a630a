from __future__ import annotations

import json

from timebound.lab.load.discovery import example_payload, from_openapi, payloads_of


def test_an_example_gets_a_key_of_its_own_for_each_request() -> None:
    payload = example_payload({"id": "e", "text": "hi"}, "id")
    assert payload.has_places
    assert payload.body == b'{"id":"{uuid}","text":"hi"}'
    assert example_payload({"text": "hi"}, "meta.id").body == b'{"text":"hi","meta":{"id":"{uuid}"}}'
    assert example_payload({"id": 7}, "id").body == b'{"id":{i}}'


def test_an_example_without_a_key_stays_as_it_is() -> None:
    payload = example_payload({"text": "{uuid}"}, None)
    assert (payload.body, payload.has_places) == (b'{"text":"{uuid}"}', False)


def document(media: object, path: str = "/ask") -> dict[str, object]:
    schemas = {"In": {"type": "object", "properties": {"n": {"type": "integer"}, "o": {}}, "required": ["n"]}}
    post = {"post": {"requestBody": {"content": {"application/json": media}}}}
    return {"paths": {"/health": {"get": {}}, path: post}, "components": {"schemas": schemas}}


def test_an_openapi_document_gives_the_first_path_that_takes_json() -> None:
    found = from_openapi(document({"schema": {"$ref": "#/components/schemas/In"}}), "/")
    assert found is not None
    assert (found.path, json.loads(found.payloads[0].body), found.deadline_s) == ("/ask", {"n": 0}, None)


def test_examples_come_before_what_the_schema_makes_up() -> None:
    for media in ({"example": {"n": 5}}, {"examples": {"one": {"value": {"n": 5}}}}, {"schema": {"example": {"n": 5}}}):
        found = from_openapi(document(media), "/ask")
        assert found is not None
        assert json.loads(found.payloads[0].body) == {"n": 5}


def test_a_path_that_the_document_does_not_know_is_not_found() -> None:
    assert from_openapi(document({}), "/other") is None


def test_samples_stand_in_for_an_example() -> None:
    picture = {"title": "cat", "data": "iVBORw==", "media": "image/png", "body": None}
    (payload,) = payloads_of({"body": "raw", "example": None, "samples": [picture]})
    assert (payload.body, payload.content_type, payload.name) == (b"\x89PNG", "image/png", "cat")
    typed = payloads_of({"body": "json", "key": "id", "samples": [{"title": "a", "body": {"n": 1}}]})
    assert typed[0].body == b'{"n":1,"id":"{uuid}"}'
    assert payloads_of({"body": "raw", "example": "hello", "samples": [picture]})[0].body == b"hello"
    assert payloads_of({"body": "raw", "example": None}) == []
