"""The OpenAPI document: valid, complete, and with every model's schema moved without losing a reference."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from timebound.http.causes import CAUSES
from timebound.http.management import Management
from timebound.http.oip import UNSUPPORTED, OpenInferenceRoutes
from timebound.http.openapi import openapi
from timebound.http.problems import STATUSES
from timebound.http.surfaces.oip import OpenInference
from timebound.http.surfaces.predict import Predict
from timebound.http.surfaces.sagemaker import SageMaker
from timebound.http.surfaces.torchserve import Explanations, Invocations, TorchServe
from timebound.store.base import Entry
from timebound.types import Body, ModelInfo, Tensor

OWN_ERRORS = {"422", "429", "504", "default"}


class Info(ModelInfo, frozen=True, kw_only=True):
    name: str = "digits"
    paths: Sequence[str] = ("/predictions/digits",)  # type: ignore[assignment] # any, in place of those it would have


class Box(msgspec.Struct, tag="box"):
    width: float


class Chain(msgspec.Struct, tag="chain"):
    next: Chain | None = None


class Drawing(msgspec.Struct):
    id: str
    image: bytes
    shape: Box | Chain
    retry: int = 0


DRAWING = msgspec.json.schema(Drawing)


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        if isinstance(node.get("discriminator"), dict):
            yield from node["discriminator"].get("mapping", {}).values()
        for part in node.values():
            yield from references(part)
    elif isinstance(node, list):
        for part in node:
            yield from references(part)


def resolve(document: Any, pointer: str) -> Any:
    node = document
    for step in pointer.removeprefix("#/").split("/"):
        node = node[step]
    return node


def body_schema(document: dict[str, Any], path: str) -> Any:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return resolve(document, schema["$ref"])


MANY = (
    Info(
        name="sketch",
        paths=("/inference", "/predictions/sketch"),
        key="id",
        request_schema=DRAWING,
        members=3,
    ),
    Info(name="sketch", version="2", paths=("/predictions/sketch/2",), request_schema=DRAWING),
    Info(name="photo größe/x", paths=("/predictions/photo",), body=Body.RAW),
    Info(name="anything", paths=("/predictions/anything",), example={"text": "hello"}),
)


@pytest.mark.parametrize("models", [(), MANY[:1], MANY], ids=["none", "one", "many"])
def test_document_is_valid_openapi_3_1(models: Sequence[Info]) -> None:
    document = openapi(models, "0.1.0")
    assert document["openapi"].startswith("3.1.")
    validate(document, cls=OpenAPIV31SpecValidator)


def test_every_reference_leads_somewhere() -> None:
    document = openapi(MANY, "0.1.0")
    found = set(references(document))
    assert len(found) > 20
    for pointer in found:
        assert pointer.startswith("#/components/")
        resolve(document, pointer)


def test_a_model_lists_the_errors_of_its_own_and_one_answer_for_all_others() -> None:
    document = openapi(MANY, "0.1.0")
    for path in ("/inference", "/predictions/sketch", "/predictions/photo", "/predictions/sketch:batch"):
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]) == OWN_ERRORS | {"200"}
        for status in OWN_ERRORS:
            response = resolve(document, operation["responses"][status]["$ref"])
            assert list(response["content"]) == ["application/problem+json"]


def test_one_table_says_what_every_error_means_and_what_helps() -> None:
    told = openapi(MANY, "0.1.0")["info"]["description"]
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (.+) \| (.+) \|$", told, re.M)
    assert {code: int(status) for status, code, _, _ in rows} == {
        code: status for code, (status, _) in STATUSES.items()
    }
    assert all(cause.endswith(".") and cure.endswith(".") for _, _, cause, cure in rows)
    assert set(CAUSES) == set(STATUSES)


@pytest.mark.parametrize(
    ("models", "title"),
    [((), "Timebound"), (MANY[:1], "sketch"), (MANY[:2], "sketch"), (MANY, "Timebound")],
    ids=["none", "one", "two versions of one", "several"],
)
def test_the_document_has_the_name_of_the_only_model(models: Sequence[Info], title: str) -> None:
    assert openapi(models, "0.1.0")["info"]["title"] == title


def test_answers_document_their_headers() -> None:
    document = openapi(MANY[:1], "0.1.0")
    headers = document["paths"]["/inference"]["post"]["responses"]["200"]["headers"]
    expected = {
        "Timebound-Quality",
        "Timebound-Members",
        "Timebound-Source",
        "Timebound-Batch",
        "Timebound-Votes",
        "Server-Timing",
    }
    assert expected <= set(headers)


def test_a_raw_body_has_the_media_types_the_model_accepts() -> None:
    any_bytes, pictures = Info(body=Body.RAW), Info(body=Body.RAW, accepts=["image/png", "image/jpeg"])
    for info, media in ((any_bytes, ["application/octet-stream"]), (pictures, ["image/png", "image/jpeg"])):
        document = openapi([info], "0.1.0")
        content = document["paths"]["/predictions/digits"]["post"]["requestBody"]["content"]
        assert list(content) == [*media, "multipart/form-data"]
        assert list(content["multipart/form-data"]["schema"]["properties"]) == ["file"]


def test_requests_document_their_headers() -> None:
    document = openapi(MANY[:1], "0.1.0")
    parameters = document["paths"]["/inference"]["post"]["parameters"]
    names = {resolve(document, parameter["$ref"])["name"] for parameter in parameters}
    assert names == {"Timebound-Timeout-Ms", "Timebound-Details", "Idempotency-Key", "X-Request-Id"}


def test_the_servers_own_paths_are_there_without_any_model() -> None:
    document = openapi([], "0.1.0")
    probes = {"/livez", "/readyz", "/metrics"}
    results = {
        "/v1/feedback/{model}/{key}",
        "/v1/results",
        "/v1/results/{model}",
        "/v1/results/{model}/{key}",
        "/v1/reload",
    }
    models = {f"/v1/models{rest}" for rest in ("", "/{model}/samples", "/{model}/traffic", "/{model}/rollback")}
    others = {"/ping", "/v1/models/{model}", "/v1/models/{model}/versions/{version}"}
    assert {path for path in document["paths"] if not path.startswith("/v2")} == models | probes | results | others


def test_the_open_inference_protocol_has_its_paths_of_a_model_and_of_a_version() -> None:
    paths = openapi([Info(name="digits")], "0.1.0")["paths"]
    for model, own in (("{model}", "digits"), ("{model}/versions/{version}", "digits/versions/1")):
        assert "get" in paths[f"/v2/models/{model}"]
        assert set(paths[f"/v2/models/{own}/infer"]["post"]["requestBody"]["content"]) == {
            "application/json",
            "application/octet-stream",
        }
    assert paths["/v2/health/ready"]["get"]["security"] == []
    assert {"/v2", "/v2/repository/index", "/v2/repository/models/{model}/load"} <= set(paths)


def test_where_keys_are_wanted_the_document_says_so_and_probes_are_open() -> None:
    document = openapi(MANY, "0.1.0", needs_key=True)
    assert set(document["components"]["securitySchemes"]) == {"adminToken", "ApiKey", "Bearer"}
    assert document["security"] == [{"ApiKey": []}, {"Bearer": []}]
    assert document["paths"]["/livez"]["get"]["security"] == []
    assert "security" not in openapi(MANY, "0.1.0")
    assert document["info"]["version"] == "0.1.0"


def test_models_with_the_same_definition_names_keep_their_own_schemas() -> None:
    def schema_with(field: str) -> dict[str, Any]:
        request = {"type": "object", "properties": {field: {"type": "string"}}}
        return {"$ref": "#/$defs/Request", "$defs": {"Request": request}}

    models = [
        Info(name="a b", paths=("/one",), request_schema=schema_with("one")),
        Info(name="a_b", paths=("/two",), request_schema=schema_with("two")),
    ]
    document = openapi(models, "0.1.0")
    assert list(body_schema(document, "/one")["properties"]) == ["one"]
    assert list(body_schema(document, "/two")["properties"]) == ["two"]


def test_a_definition_cannot_take_the_place_of_the_servers_own() -> None:
    schema = {"$ref": "#/$defs/Problem", "$defs": {"Problem": {"type": "integer"}}}
    document = openapi([Info(request_schema=schema)], "0.1.0")
    assert document["components"]["schemas"]["Problem"]["type"] == "object"
    assert body_schema(document, "/predictions/digits") == {"type": "integer"}


def test_tagged_unions_keep_their_mapping() -> None:
    document = openapi([Info(request_schema=DRAWING)], "0.1.0")
    shape = body_schema(document, "/predictions/digits")["properties"]["shape"]
    box = resolve(document, shape["discriminator"]["mapping"]["box"])
    assert "width" in box["properties"]
    assert shape["anyOf"][0]["$ref"] == shape["discriminator"]["mapping"]["box"]


def test_a_schema_may_refer_to_its_own_root_and_into_definitions() -> None:
    schema = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "size": {"$ref": "#/$defs/a~1b/properties/n"}},
        "$defs": {"a/b": {"properties": {"n": {"type": "integer"}}}},
    }
    document = openapi([Info(request_schema=schema)], "0.1.0")
    root = body_schema(document, "/predictions/digits")
    assert resolve(document, root["properties"]["child"]["$ref"]) is root
    assert resolve(document, root["properties"]["size"]["$ref"]) == {"type": "integer"}


def test_data_that_looks_like_a_reference_is_left_alone() -> None:
    data = {"$ref": "#/$defs/Gone"}
    properties = {"default": {"$ref": "#/$defs/Here"}, "free": {"default": data, "enum": [data]}}
    schema = {"type": "object", "properties": properties, "$defs": {"Here": {"type": "string"}}}
    document = openapi([Info(request_schema=schema)], "0.1.0")
    moved = body_schema(document, "/predictions/digits")["properties"]
    assert moved["free"] == {"default": data, "enum": [data]}
    assert resolve(document, moved["default"]["$ref"]) == {"type": "string"}


def test_the_models_own_schema_is_not_changed() -> None:
    before = copy.deepcopy(DRAWING)
    document = openapi([Info(request_schema=DRAWING)], "0.1.0")
    body_schema(document, "/predictions/digits")["properties"].clear()
    assert before == DRAWING


def test_raw_models_take_bytes_and_no_example() -> None:
    document = openapi([Info(body=Body.RAW, example=b"\x00")], "0.1.0")
    content = document["paths"]["/predictions/digits"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/octet-stream", "multipart/form-data"]
    json.dumps(document)


def test_the_example_is_shown_as_it_is() -> None:
    document = openapi([Info(example={"text": None})], "0.1.0")
    content = document["paths"]["/predictions/digits"]["post"]["requestBody"]["content"]
    assert content["application/json"]["example"] == {"text": None}


def test_operation_ids_are_unique() -> None:
    document = openapi(MANY, "0.1.0")
    operations = [part for item in document["paths"].values() for part in item.values() if isinstance(part, dict)]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))


def test_a_path_claimed_twice_belongs_to_the_first_model() -> None:
    document = openapi([Info(name="first"), Info(name="second")], "0.1.0")
    assert document["paths"]["/predictions/digits"]["post"]["tags"] == ["first"]


def test_results_by_key_are_described_and_the_operators_calls_say_so() -> None:
    paths = openapi([Info()], "1")["paths"]
    one, many = paths["/v1/results/{model}/{key}"], paths["/v1/results/{model}"]
    assert set(one["get"]["responses"]) >= {"200", "202", "401", "404"}
    assert "security" not in one["get"]
    operators = [one["delete"], many["get"], many["delete"], *map(paths["/v1/results"].get, ("get", "delete"))]
    for operation in operators:
        assert {"adminToken": []} in operation["security"]
        assert {"200", "401", "403", "503"} <= set(operation["responses"])


def test_the_listing_is_described_as_it_is_made() -> None:
    described = openapi([Info()], "1")["components"]["schemas"]["KeptResult"]["properties"]
    assert set(described) == set(Entry.__struct_fields__)


def test_every_call_of_the_operators_asks_for_the_token() -> None:
    paths = openapi([], "0.1.0")["paths"]
    calls = [("/v1/reload", "post"), ("/v1/models/{model}/rollback", "post")]
    calls += [("/v1/models/{model}/traffic", method) for method in ("get", "put")]
    assert all({"adminToken": []} in paths[path][method]["security"] for path, method in calls)
    assert "security" not in paths["/v1/models"]["get"]


def test_every_route_of_other_protocols_is_described() -> None:
    paths = openapi([Info(name="digits")], "1")["paths"]
    info = ModelInfo(name="digits")
    asked = [path for surface in (OpenInference, Predict, SageMaker) for path in surface.paths(info)]
    asked += [path for surface in (OpenInference, Predict, SageMaker) for path in surface.version_paths(info)]
    templates = {re.sub(r"\\{(\w+)\\}", r"[^/:]+", re.escape(path)) for path in paths}
    routes = OpenInferenceRoutes(cast(Any, None), cast(Any, None), None).routes()
    refused = (*UNSUPPORTED, "/", "/infer", ":predict")  # asked of models that are not there
    own = [route.path for route in routes if not route.path.endswith(refused)]
    unknown = [path for path in (*asked, *own) if not any(re.fullmatch(each, path.rstrip("/")) for each in templates)]
    assert unknown == []


def test_a_model_is_described_with_its_own_tensors() -> None:
    inputs = [Tensor("image", "FP32", [-1, 3, -1]), Tensor("scale", "FP64", [-1], is_optional=True)]
    info = ModelInfo(name="digits", backend="onnx", inputs=inputs, outputs=[Tensor("label", "INT64", [-1])])
    document = openapi([info, ModelInfo(name="digits@2", version="2", inputs=inputs)], "1")
    validate(document, cls=OpenAPIV31SpecValidator)
    asked = document["paths"]["/v2/models/digits/infer"]["post"]
    assert "/v2/models/digits/versions/2/infer" in document["paths"]
    schema = asked["requestBody"]["content"]["application/json"]["schema"]
    check = Draft202012Validator(schema).is_valid
    image = {"name": "image", "datatype": "FP32", "shape": [2, 3, 7], "data": []}
    assert check({"inputs": [image], "outputs": [{"name": "label"}]})
    wrong: list[dict[str, Any]] = [{"name": "picture"}, {"shape": [2, 4, 7]}, {"shape": [257, 3, 7]}, {"shape": [2, 3]}]
    assert not any(check({"inputs": [image | each]}) for each in wrong)
    assert not check({"inputs": [image], "outputs": [{"name": "other"}]})
    headers = asked["responses"]["200"]["headers"]
    assert {"Timebound-Quality", "Timebound-Source", "Server-Timing", "Inference-Header-Content-Length"} <= set(headers)


def test_rows_and_sagemakers_paths_have_the_models_own_body_and_answer() -> None:
    info = ModelInfo(name="digits", request_schema=DRAWING, example={"id": "a"}, answer_media="image/png")
    document = openapi([info], "1")
    paths = document["paths"]
    predict = paths["/v1/models/digits:predict"]["post"]["requestBody"]["content"]["application/json"]
    assert predict["example"] == {"instances": [{"id": "a"}]}
    own = paths["/predictions/digits"]["post"]
    rows = predict["schema"]["anyOf"][0]["properties"]["instances"]["items"]
    assert rows == own["requestBody"]["content"]["application/json"]["schema"]
    for path in ("/models/digits/invoke", "/invocations"):
        assert paths[path]["post"]["requestBody"] == own["requestBody"]
        assert paths[path]["post"]["responses"] == own["responses"]
    several = openapi([info, ModelInfo(name="other")], "1")["paths"]
    assert "/invocations" not in several
    assert "/models/other/invoke" in several


def test_every_path_of_an_archive_and_its_management_is_described() -> None:
    infos = [ModelInfo(name="mood", backend="handler", version="1.0")]
    infos.append(ModelInfo(name="mood@2", backend="handler", version="2"))
    document = openapi(infos, "1", has_archives=True)
    validate(document, cls=OpenAPIV31SpecValidator)
    paths = document["paths"]
    for info in infos:
        for surface in (TorchServe, Explanations, Invocations):
            for path in (*surface.paths(info), *surface.version_paths(info), Invocations.lone_path):
                assert {"get", "post", "put"} <= paths[path].keys()
    routes = Management(cast(Any, None), cast(Any, None)).routes()
    told = {(path, method.upper()) for path, item in paths.items() for method in item}
    assert {(each.path, method) for each in routes for method in (each.methods or set()) - {"HEAD"}} <= told
    assert paths["/predictions/mood/2/{url_path}"]["post"]["parameters"][0]["name"] == "url_path"
    assert "/models" not in openapi([Info()], "1")["paths"]


def answer_of(**facts: Any) -> tuple[dict[str, Any], Any]:
    document = openapi([Info(**facts)], "1")
    validate(document, cls=OpenAPIV31SpecValidator)
    return document, document["paths"]["/predictions/digits"]["post"]["responses"]["200"]["content"]


def test_an_answer_has_the_schema_of_its_class_and_an_example() -> None:
    schema = msgspec.json.schema(Drawing)
    document, content = answer_of(answer_schema=schema, answer_example={"id": "a"}, answer_media="application/json")
    assert content["application/json"]["example"] == {"id": "a"}
    assert resolve(document, content["application/json"]["schema"]["$ref"])["title"] == "Drawing"


def test_without_a_class_the_example_is_what_was_seen() -> None:
    _, content = answer_of(answer_example={"id": "a"}, answer_media="application/json")
    assert content.pop("text/event-stream")["schema"]["type"] == "string"
    assert content == {"application/json": {"schema": {}, "example": {"id": "a"}}}


def test_an_answer_that_is_a_picture_is_told_as_one() -> None:
    assert answer_of(answer_media="image/png")[1].keys() == {"image/png", "text/event-stream"}
