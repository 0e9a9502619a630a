"""The part of the API document that is about results by key."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

OPERATOR: list[Json] = [{"adminToken": []}, {}]  # a token, or none if the server has none

_LIMIT = "A limit of the connection; see the code."


def result_paths(tag: str) -> Json:
    """The routes of `http/results.py`."""
    model, key = _in_path("model", "Name of the model."), _in_path("key", "Key of the request.")
    return {
        "/v1/results": {
            "get": _list(tag, "List all results", "list_results"),
            "delete": _clear(tag, "Forget all results", "clear_results"),
        },
        "/v1/results/{model}": {
            "parameters": [model],
            "get": _list(tag, "List the results of a model", "list_results_of_model"),
            "delete": _clear(tag, "Forget the results of a model", "clear_results_of_model"),
        },
        "/v1/results/{model}/{key}": {
            "parameters": [model, key],
            "get": _read(tag),
            "delete": _clear(tag, "Forget one result", "clear_result"),
        },
    }


def result_schemas() -> Json:
    """What those routes answer with."""
    entry: Json = {
        "model": {"type": "string"},
        "key": {"type": "string"},
        "quality": {"type": "string", "enum": ["full", "partial"]},
        "bytes": {"type": "integer", "minimum": 0, "description": "Size of the answer."},
        "at": {"type": "number", "description": "When it was finished, in seconds since 1970."},
        "expires_in_s": {"type": "number", "minimum": 0},
    }
    listed: Json = {
        "results": {"type": "array", "items": {"$ref": "#/components/schemas/KeptResult"}},
        "is_complete": {"type": "boolean", "description": "Whether there are no more than these."},
    }
    return {
        "KeptResult": _object(entry),
        "KeptResultList": _object(listed),
        "Cleared": _object({"cleared": {"type": "integer", "minimum": 0, "description": "How many there were."}}),
        "Running": _object({"state": {"const": "running"}}),
    }


def _read(tag: str) -> Json:
    kept = ("Timebound-Quality", "Timebound-Members", "Timebound-Source")
    headers: Json = {name: {"$ref": f"#/components/headers/{name}"} for name in kept}
    headers["Timebound-Finished-At"] = {"description": "Seconds since 1970.", "schema": {"type": "number"}}
    retry_after = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
    return {
        "tags": [tag],
        "summary": "Read the result of a request",
        "description": "A key may have any characters, encoded as in any URL. Without API keys, who knows it may read.",
        "operationId": "read_result",
        "responses": {
            "200": {
                "description": "The answer, as the model gave it.",
                "headers": headers,
                "content": {media: {"schema": {}} for media in ("application/json", "application/octet-stream")},
            },
            "202": {"description": "The request is in work.", "headers": retry_after, "content": _content("Running")},
            "401": _problem("The server wants an API key."),
            "403": _problem("The API key is not for this model."),
            "404": _problem("No result is kept under this key."),
            "429": _problem("The API key is over its rate."),
            "default": _problem(_LIMIT),
        },
    }


def _list(tag: str, summary: str, name: str) -> Json:
    return _operators(tag, summary, name, "What is kept.", "KeptResultList")


def _clear(tag: str, summary: str, name: str) -> Json:
    return _operators(tag, summary, name, "They are forgotten, by all servers that share the store.", "Cleared")


def _operators(tag: str, summary: str, name: str, done: str, schema: str) -> Json:
    return {
        "tags": [tag],
        "summary": summary,
        "operationId": name,
        "security": OPERATOR,
        "responses": {
            "200": {"description": done, "content": _content(schema)},
            "401": _problem("The admin token is missing or wrong."),
            "403": _problem("The server has no admin token, and this does not come from its own machine."),
            "503": _problem("The store cannot be asked now."),
            "default": _problem(_LIMIT),
        },
    }


def _content(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _problem(description: str) -> Json:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": description, "content": content}


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _in_path(name: str, description: str) -> Json:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}
