"""The part of the OpenAPI document that is the same on every server: its own paths, and what they answer with."""

from __future__ import annotations

from typing import Any

from timebound.http.openapi_results import OPERATOR, result_paths, result_schemas

Json = dict[str, Any]

SERVER_TAG = "server"


def server_paths() -> Json:
    """The server's own paths."""
    return {
        "/v1/models": {"get": _call("What is running", "models", {"200": _MODELS}, _KEY)},
        "/v1/models/{model}/samples": {
            "get": _call("Bodies to try", "samples", {"200": _SAMPLES}, (*_KEY, "404"), "model")
        },
        "/v1/models/{model}/traffic": {
            "get": _call(
                "How a model's versions share its requests (operator)", "traffic", _TRAFFIC, _CHANGES, "model"
            ),
            "put": _call("Share out a model's versions (operator)", "set_traffic", _TRAFFIC, _CHANGES, "model")
            | {"requestBody": {"required": True, "content": _JSON}},
        },
        "/v1/models/{model}/rollback": {
            "post": _call("Go back to the version before (operator)", "roll_back", _TRAFFIC, _CHANGES, "model")
        },
        **result_paths(SERVER_TAG),
        "/v1/reload": {"post": _call("Load models and keys again (operator)", "reload", {"200": _RELOADED}, _CHANGES)},
        "/livez": {"get": _call("Is the process alive", "livez", {"200": _said("It is.")}, is_open=True)},
        "/readyz": {"get": _call("Can it answer", "readyz", _READY, is_open=True)},
        "/metrics": {"get": _call("Prometheus metrics", "metrics", {"200": _METRICS}, _KEY)},
    }


_JSON: Json = {"application/json": {"schema": {}}}
_KEY = ("401", "429")
_CHANGES = ("401", "403", "404", "409", "422", "429")
_MODELS = {
    "description": "All models.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ModelList"}}},
}
_SAMPLES = {"description": "The samples the model's class names.", "content": _JSON}
_RELOADED = {"description": "The models that are served now.", "content": _JSON}
_METRICS = {"description": "All metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
_TRAFFIC = {"200": {"description": "How the versions share the requests now.", "content": _JSON}}


def _said(text: str) -> Json:
    return {"description": text, "content": _JSON}


_READY = {
    "200": _said("A real inference succeeded on every model that must be ready."),
    "503": _said("Some model is not ready, or the server is shutting down."),
}

_PROBLEMS = {
    "401": "An API key or the admin token is wanted.",
    "403": "This is the operator's, or the API key is not for this model.",
    "404": "There is no such thing.",
    "409": "It cannot be loaded; nothing has changed.",
    "422": "The body is not what is wanted here.",
    "429": "The API key is over its rate.",
}


def _call(
    summary: str, name: str, answers: Json, problems: tuple[str, ...] = (), *places: str, is_open: bool = False
) -> Json:
    """One operation: what it answers with, which problems it may have, which parts its path has."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    # What any request may get, whatever it asks for: a connection's own limits.
    told = {status: {"description": _PROBLEMS[status], "content": problem} for status in problems}
    told["default"] = {"description": "A limit of the connection; see the code.", "content": problem}
    parameters = [
        {"name": place, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for place in places
    ]
    return {
        "tags": [SERVER_TAG],
        "summary": summary,
        "operationId": name,
        "responses": answers | told,
        **({"parameters": parameters} if parameters else {}),
        **({"security": []} if is_open else {"security": OPERATOR} if "403" in problems else {}),
    }


def server_schemas() -> Json:
    """The schemas those paths use."""
    schemas = {"Problem": _problem_schema(), "ModelList": _model_list_schema(), "Model": _model_schema()}
    return schemas | result_schemas()


def _problem_schema() -> Json:
    return {
        "type": "object",
        "description": "Why a request was not answered by the model.",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "description": "Stable; made for programs."},
            "old_code": {"type": "string", "description": "What the code was called in the last release; goes away."},
            "field": {"type": "string", "description": "The body field at fault, if it is one."},
            "request_id": {"type": "string"},
        },
        "required": ["type", "title", "status", "detail", "code"],
    }


def _model_list_schema() -> Json:
    properties: Json = {
        "models": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
        "version": {"type": "string", "description": "The server's version."},
        "uptime_s": {"type": "number"},
        "pid": {"type": "integer"},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _model_schema() -> Json:
    text, optional_text = {"type": "string"}, {"type": ["string", "null"]}
    count = {"type": "integer", "minimum": 1}
    optional_schema = {"type": ["object", "null"], "description": "A JSON Schema."}
    properties: Json = {
        "name": text,
        "version": text,
        "description": text,
        "state": {"type": "string", "enum": ["ready", "loading", "failed"]},
        "reason": {**optional_text, "description": "Why the model failed."},
        "paths": {"type": "array", "items": text},
        "deadline_s": {"type": "number"},
        "key": {**optional_text, "description": "The body field that names a request."},
        "members": count,
        "member_names": {"type": "array", "items": text},
        "combine": optional_text,
        "backend": text,
        "engine": {**text, "description": "What its ONNX files run on; empty if it has none."},
        "body": {"type": "string", "enum": ["json", "raw"]},
        "accepts": {"type": "array", "items": text, "description": "Media types of a raw body."},
        "request_schema": optional_schema,
        "example": {"description": "A request body that works."},
        "samples": {"type": "integer", "minimum": 0, "description": "How many bodies to try there are."},
        "has_fallback": {"type": "boolean"},
        "workers": {"type": "integer", "minimum": 0},
        "slots": {"type": "integer", "minimum": 0},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}
