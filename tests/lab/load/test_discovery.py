from __future__ import annotations

import json

import pytest

from timebound.errors import SetupError
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
    found = from_openapi(document({"schema": {"$ref": "#/components/schemas/In"}}), "/", "example")
    assert found is not None
    assert (found.path, json.loads(found.payloads[0].body), found.deadline_s) == ("/ask", {"n": 0}, None)


def test_examples_come_before_what_the_schema_makes_up() -> None:
    for media in ({"example": {"n": 5}}, {"examples": {"one": {"value": {"n": 5}}}}, {"schema": {"example": {"n": 5}}}):
        found = from_openapi(document(media), "/ask", "example")
        assert found is not None
        assert json.loads(found.payloads[0].body) == {"n": 5}


def test_a_path_that_the_document_does_not_know_is_not_found() -> None:
    assert from_openapi(document({}), "/other", "example") is None


def test_samples_stand_in_for_an_example() -> None:
    picture = {"title": "cat", "data": "iVBORw==", "media": "image/png", "body": None}
    raw = {"name": "cats", "body": "raw", "example": None, "samples": [picture]}
    (payload,) = payloads_of(raw, "example")
    assert (payload.body, payload.content_type, payload.name) == (b"\x89PNG", "image/png", "cat")
    typed = {"name": "n", "body": "json", "key": "id", "samples": [{"title": "a", "body": {"n": 1}}]}
    assert payloads_of(typed, "example")[0].body == b'{"n":1,"id":"{uuid}"}'
    assert payloads_of({**raw, "example": "hello"}, "example")[0].body == b"hello"
    assert payloads_of({**raw, "samples": []}, "example") == []


def test_samples_may_be_asked_for_though_there_is_an_example() -> None:
    model = {"name": "n", "body": "json", "example": {"n": 0}, "samples": [{"title": "a", "body": {"n": 1}}]}
    assert payloads_of(model, "samples")[0].body == b'{"n":1}'
    with pytest.raises(SetupError, match="n has no samples"):
        payloads_of({**model, "samples": []}, "samples")


def test_bodies_are_made_up_from_the_schema_each_with_a_key_of_its_own() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["id", "n"],
    }
    model = {"name": "n", "body": "json", "key": "id", "request_schema": schema, "samples": []}
    payloads = payloads_of(model, "schema")
    assert len({payload.body for payload in payloads}) > 50
    assert all(b'"id":"{uuid}"' in payload.body for payload in payloads)
    assert [payload.body for payload in payloads] == [payload.body for payload in payloads_of(model, "schema")]
    found = from_openapi(document({"schema": {"$ref": "#/components/schemas/In"}}), "/", "schema")
    assert found is not None
    assert len({payload.body for payload in found.payloads}) > 50
    for wrong, why in (({"body": "raw"}, "raw bytes"), ({"request_schema": None}, "no schema")):
        with pytest.raises(SetupError, match=why):
            payloads_of({**model, **wrong}, "schema")
