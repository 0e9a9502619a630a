"""The OpenAPI 3.1 document of a running server, made from what is known about its models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from timebound.http.openapi_server import SERVER_TAG, server_paths, server_schemas

Json = dict[str, Any]


class ModelInfo(Protocol):
    """What the document needs to know about one model."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def paths(self) -> Sequence[str]: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def key(self) -> str | None: ...
    @property
    def body(self) -> str: ...
    @property
    def accepts(self) -> Sequence[str]: ...
    @property
    def request_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def example(self) -> Any: ...
    @property
    def members(self) -> int: ...


def openapi(models: Sequence[ModelInfo], server_version: str, *, needs_key: bool = False) -> Json:
    """Describe every model path and the server's own paths; `needs_key` if API keys are configured.

    Paths and components never collide: where two models claim the same path the first one is described,
    and schemas of the same name get a number.
    """
    schemas = server_schemas()
    paths: Json = {}
    operation_ids: set[str] = set()
    for model in models:
        body = _request_body(model, schemas)
        for path in model.paths:
            if path not in paths:
                paths[path] = {"post": _operation(model, body, operation_ids)}
    tags = [{"name": name} for name in dict.fromkeys(model.name for model in models)]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Timebound", "version": server_version, "description": _INTRODUCTION},
        "tags": [*tags, {"name": SERVER_TAG, "description": "Health, metrics and what is running."}],
        "paths": paths | {path: item for path, item in server_paths().items() if path not in paths},
        "components": {
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer", "description": _ADMIN}}
            | (_KEYS if needs_key else {}),
            "schemas": schemas,
            "parameters": _parameters(),
            "headers": _headers(),
            "responses": {name: _problem_response(name) for name in _REFUSALS.values()},
        },
    } | ({"security": [{name: []} for name in _KEYS]} if needs_key else {})


# --- one model ---------------------------------------------------------------------------------------


def _operation(model: ModelInfo, body: Json, taken: set[str]) -> Json:
    refusals = {status: _reference("responses", name) for status, name in _REFUSALS.items()}
    return {
        "tags": [model.name],
        "summary": f"Ask {model.name}",
        "description": _description(model),
        "operationId": _claim(f"ask_{_slug(model.name)}", taken),
        "parameters": [_reference("parameters", name) for name in _parameters()],
        "requestBody": body,
        "responses": {"200": _answer()} | refusals,
    }


def _description(model: ModelInfo) -> str:
    members = f", {model.members} members" if model.members > 1 else ""
    facts = [f"Version {model.version}{members}. Answers within {model.deadline_s:g} s of arrival."]
    if model.key is not None:
        facts.append(
            f"The body field `{model.key}` names the request: another attempt with the same body joins it while it is "
            "in work, and gets the same result again later."
        )
    return " ".join([f"{model.description}\n\n", *facts] if model.description else facts)


def _request_body(model: ModelInfo, schemas: Json) -> Json:
    if model.body == "raw":
        binary = {"type": "string", "format": "binary"}
        media_types = model.accepts or ["application/octet-stream"]
        return {"required": True, "content": {media: {"schema": binary} for media in media_types}}
    media: Json = {"schema": _adopt(model.request_schema or {}, _slug(model.name), schemas)}
    if model.example is not None:
        media["example"] = model.example
    return {"required": True, "content": {"application/json": media}}


def _answer() -> Json:
    names = [name for name in _headers() if name != "Retry-After"]
    return {
        "description": "The model's answer; its headers say how good it is and how it came.",
        "headers": {name: _reference("headers", name) for name in names},
        "content": {media: {"schema": {}} for media in ("application/json", "application/octet-stream")},
    }


# --- a model's JSON Schema becomes components --------------------------------------------------------

_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_DATA = frozenset({"const", "enum", "default", "example", "examples"})


def _adopt(schema: Mapping[str, Any], owner: str, schemas: Json) -> Json:
    """Move `schema` and its `$defs` into `schemas` under names of their own; return a reference to it."""
    # $schema and $id belong to a document of its own; an $id would also change where references lead.
    root = {word: part for word, part in schema.items() if word not in ("$defs", "$schema", "$id")}
    if not root:
        return {}
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    names: dict[str, str] = {}
    for definition in definitions:
        names[definition] = _claim(f"{owner}.{_slug(definition)}", schemas)
        schemas[names[definition]] = {}
    if set(root) == {"$ref"}:
        root_name = names[_definition_name(root["$ref"])[0]]
    else:
        root_name = _claim(f"{owner}.Body", schemas)

    def moved(pointer: str) -> str:
        if not pointer.startswith("#"):
            return pointer
        if not pointer.startswith("#/$defs/"):
            return f"#/components/schemas/{root_name}{pointer[1:]}"
        definition, rest = _definition_name(pointer)
        return f"#/components/schemas/{names[definition]}{rest}"

    for definition, part in definitions.items():
        schemas[names[definition]] = _rewrite(part, moved)
    if set(root) != {"$ref"}:
        schemas[root_name] = _rewrite(root, moved)
    return _reference("schemas", root_name)


def _definition_name(pointer: str) -> tuple[str, str]:
    """Split `#/$defs/Name/rest` into the unescaped name and `/rest`."""
    name, slash, rest = pointer.removeprefix("#/$defs/").partition("/")
    return unquote(name).replace("~1", "/").replace("~0", "~"), slash + rest


def _rewrite(schema: Any, moved: Callable[[str], str]) -> Any:
    """Copy a schema with every reference moved; data such as defaults stays as it is."""
    if isinstance(schema, list | tuple):
        return [_rewrite(part, moved) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {word: _rewrite_keyword(word, value, moved) for word, value in schema.items()}


def _rewrite_keyword(word: str, value: Any, moved: Callable[[str], str]) -> Any:
    if word == "$ref" and isinstance(value, str):
        return moved(value)
    if word in _DATA:
        return value
    if word in _SCHEMA_MAPS and isinstance(value, Mapping):
        # Here the words are names chosen by the user; one may be called "default" or "$ref".
        return {name: _rewrite(part, moved) for name, part in value.items()}
    if word == "discriminator" and isinstance(value, Mapping):
        mapping = {tag: moved(pointer) for tag, pointer in value.get("mapping", {}).items()}
        return {**value, "mapping": mapping}
    return _rewrite(value, moved)


def _slug(name: str) -> str:
    """Component names allow letters, digits, dot, dash and underscore only."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name) or "_"


def _claim(name: str, taken: set[str] | Json) -> str:
    """Return `name`, numbered if it is taken; a set remembers it."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    if isinstance(taken, set):
        taken.add(free)
    return free


def _reference(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


# --- the same for every model ------------------------------------------------------------------------

_INTRODUCTION = (
    "Every request is answered before its deadline: by the full model, by part of the ensemble, by the "
    "model's fallback, or by a refusal that says why. Errors are `application/problem+json`."
)

_ADMIN = "The server's `--admin-token`; without one, these calls are answered on its own machine only."
_KEYS: Json = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
}

_REFUSALS = {
    "400": "BadRequest",
    "401": "NoKey",
    "403": "NotAllowed",
    "404": "NoModel",
    "408": "SlowClient",
    "413": "TooLarge",
    "415": "UnsupportedType",
    "422": "InvalidInput",
    "429": "Overloaded",
    "431": "LongHeaders",
    "500": "Failed",
    "503": "NotReady",
    "504": "DeadlineMissed",
}

_REFUSAL_TEXTS = {
    "BadRequest": "The body or a header cannot be read.",
    "NoKey": "The server wants an API key, and this is none of its keys.",
    "NotAllowed": "The API key is not for this model.",
    "NoModel": "The model is no longer served.",
    "SlowClient": "The request did not arrive in time.",
    "LongHeaders": "Request line and headers are larger than the server accepts.",
    "TooLarge": "The body is larger than the server accepts.",
    "UnsupportedType": "The content type is not one this model reads.",
    "InvalidInput": "The body is readable but not valid for this model, or its key came with another body.",
    "Overloaded": "Refused for load, or for the limits of the API key; Retry-After says when to ask again.",
    "Failed": "The model or the server made a mistake; the log has the whole story.",
    "NotReady": "No worker can answer, the memory for bodies is full, or the server is shutting down.",
    "DeadlineMissed": "The deadline passed against prediction and the model has no fallback.",
}

_WITH_RETRY_AFTER = frozenset({"Overloaded", "NotReady"})


def _problem_response(name: str) -> Json:
    headers = ["X-Request-Id", "Retry-After"] if name in _WITH_RETRY_AFTER else ["X-Request-Id"]
    return {
        "description": _REFUSAL_TEXTS[name],
        "headers": {header: _reference("headers", header) for header in headers},
        "content": {"application/problem+json": {"schema": _reference("schemas", "Problem")}},
    }


def _parameters() -> Json:
    def header(name: str, description: str, schema: Json) -> Json:
        return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}

    return {
        "TimeboundTimeoutMs": header(
            "Timebound-Timeout-Ms",
            "Milliseconds this client will wait, in place of the model's own deadline; at most what the server allows.",
            {"type": "number", "minimum": 0.001},
        ),
        "IdempotencyKey": header(
            "Idempotency-Key",
            "Names the request, so that another attempt with the same body joins it while it is in work, and gets the "
            "same result again later.",
            {"type": "string", "maxLength": 256},
        ),
        "TimeboundDetails": header(
            "Timebound-Details",
            "Ask for the answer each member of an ensemble gives by itself, in Timebound-Votes.",
            {"type": "string", "enum": ["votes"]},
        ),
        "XRequestId": header("X-Request-Id", "Comes back in the response and appears in the log.", {"type": "string"}),
    }


def _headers() -> Json:
    def header(description: str, schema: Json) -> Json:
        return {"description": description, "schema": schema}

    quality = {"type": "string", "enum": ["full", "partial", "fallback"]}
    source = {"type": "string", "enum": ["computed", "joined", "stored"]}
    return {
        "Timebound-Quality": header("All members, some of them, or the model's fallback.", quality),
        "Timebound-Members": header(
            "Members that took part, of all members.",
            {"type": "string", "pattern": "^[0-9]+/[0-9]+$", "examples": ["3/3"]},
        ),
        "Timebound-Source": header("Computed now, joined to an attempt in flight, or kept from before.", source),
        "Timebound-Batch": header("Requests computed together; 0 for a fallback.", {"type": "integer", "minimum": 0}),
        "Server-Timing": header(
            "Milliseconds in each stage: queue, prepare, infer, finish.",
            {
                "type": "string",
                "examples": ["queue;dur=0.2, prepare;dur=1.1, infer;dur=12.9, finish;dur=0.1"],
            },
        ),
        "Timebound-Votes": header(
            "If asked for: a JSON list of each member's name and its own answer.",
            {"type": "string", "examples": ['[{"member":"small","answer":{"label":"cat"}}]']},
        ),
        "X-Request-Id": header("The id that came with the request, or a new one.", {"type": "string"}),
        "Retry-After": header("Seconds to wait before a new attempt.", {"type": "integer", "minimum": 0}),
    }
