"""The OpenAPI 3.1 document of a running server, made from what is known about its models.

What is the same on every server lies beside this file: in `openapi.json` its own paths and what all models share, in
`openapi_tensors.json` those of other protocols. `openapi_tensors.py` describes a model in these, `openapi_archives.py`
model archives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from timebound.http.causes import error_table
from timebound.http.openapi_archives import add_management, archive_paths
from timebound.http.openapi_tensors import Parts, tensor_paths
from timebound.types import Body, ModelInfo

Json = dict[str, Any]

_KEYS = ("ApiKey", "Bearer")


def openapi(
    models: Sequence[ModelInfo], server_version: str, *, needs_key: bool = False, has_archives: bool = False
) -> Json:
    """Describe every model path and the server's own paths; `needs_key` if API keys are configured.

    `has_archives` if model archives are served, or may be.

    Paths and components never collide: where two models claim the same path the first one is described,
    and schemas of the same name get a number.
    """
    same = msgspec.json.decode(_same_everywhere())
    document: Json = same["document"]
    components = document["components"]
    bases = {model.base for model in models}
    is_lone = len(bases) == 1
    _add_tensors(document)
    if has_archives:
        add_management(document)
    paths: Json = {}
    operation_ids: set[str] = set()
    for model in models:
        if model.is_handler:
            begin = partial(_archive_operation, model, operation_ids)
            paths |= archive_paths(model, begin, is_lone=is_lone)
            parts = Parts({}, same["model_operation"], {})
            paths |= tensor_paths(model, parts, partial(_operation, model, {}, operation_ids), is_lone=is_lone)
            continue
        body = _request_body(model, components["schemas"])
        shared = same["model_operation"]
        answers = shared["responses"] | {
            "200": _with_events(_answer(model, shared["responses"]["200"], components["schemas"]))
        }
        query = (
            _query(body["content"]["application/json"]["schema"], components["schemas"])
            if "GET" in model.methods
            else []
        )
        for path in model.paths:
            if path not in paths:
                paths[path] = {"post": _operation(model, body, operation_ids) | shared | {"responses": answers}}
                if "GET" in model.methods:
                    by_query = {"parameters": [*query, *shared["parameters"]], "responses": answers}
                    asked = _operation(model, {}, operation_ids) | by_query
                    del asked["requestBody"]
                    paths[path]["get"] = asked
        own = f"/predictions/{model.name}"
        if own in model.paths and f"{own}:batch" not in paths:
            paths[f"{own}:batch"] = {"post": _list(model, body, shared, answers, operation_ids)}
        begin = partial(_operation, model, body, operation_ids)
        tensors = tensor_paths(model, Parts(body, shared, answers), begin, is_lone=is_lone)
        paths |= {path: item for path, item in tensors.items() if path not in paths}  # a model's own come first
    info = document["info"]
    info["title"] = bases.pop() if len(bases) == 1 else info["title"]
    info["version"] = server_version
    info["description"] += f"\n\n{error_table()}"
    document["tags"] = [{"name": name} for name in dict.fromkeys(model.name for model in models)] + document["tags"]
    document["paths"] = paths | {path: item for path, item in document["paths"].items() if path not in paths}
    if not needs_key:
        del document["security"]
        for name in _KEYS:
            del components["securitySchemes"][name]
    return document


@cache
def _same_everywhere(more: str = "") -> bytes:
    return Path(__file__).with_name(f"openapi{more}.json").read_bytes()


def _add_tensors(document: Json) -> None:
    more = msgspec.json.decode(_same_everywhere("_tensors"))
    document["tags"] += more["tags"]
    document["paths"] |= more["paths"]
    for kind, parts in more["components"].items():
        document["components"][kind] |= parts


# --- one model ---------------------------------------------------------------------------------------


def _operation(model: ModelInfo, body: Json, taken: set[str]) -> Json:
    return {
        "tags": [model.name],
        "summary": f"Ask {model.name}",
        "description": _description(model),
        "operationId": _claim(f"ask_{_slug(model.name)}", taken),
        "requestBody": body,
    }


def _archive_operation(model: ModelInfo, taken: set[str], method: str) -> Json:
    return {**_operation(model, {}, taken), "summary": f"Ask {model.name} by {method.upper()}"}


def _description(model: ModelInfo) -> str:
    members = f", {model.members} members" if model.members > 1 else ""
    facts = [f"Version {model.version}{members}. Answers within {model.deadline_s:g} s of arrival."]
    if model.key is not None:
        facts.append(
            f"The body field `{model.key}` names the request: another attempt with the same body joins it while it is "
            "in work, and gets the same result again later."
        )
    return " ".join([f"{model.description}\n\n", *facts] if model.description else facts)


def _list(model: ModelInfo, body: Json, shared: Json, answers: Json, taken: set[str]) -> Json:
    """The operation that takes a list of the model's bodies."""
    item = body["content"].get("application/json", {}).get("schema", {})
    several = {"type": "array", "minItems": 1, "maxItems": 256, "items": item}
    told = "The answers, in order; in the place of an item that failed is an object with `error`, a problem."
    listed = {"description": told, "content": {"application/json": {"schema": {"type": "array"}}}}
    asked = {"required": True, "content": {"application/json": {"schema": several}}}
    own = {"summary": f"Ask {model.name} with a list", "requestBody": asked, "responses": answers | {"200": listed}}
    return _operation(model, body, taken) | shared | own


def _request_body(model: ModelInfo, schemas: Json) -> Json:
    if model.body is Body.RAW:
        binary = {"type": "string", "format": "binary"}
        media_types = model.accepts or ["application/octet-stream"]
        content: Json = {media: {"schema": binary} for media in media_types}
        if not any(media.startswith("multipart/") for media in media_types):  # else the model reads forms by itself
            file = {"type": "object", "properties": {"file": binary}, "required": ["file"]}
            content["multipart/form-data"] = {"schema": file}
        return {"required": True, "content": content}
    media: Json = {"schema": _adopt(model.request_schema or {}, _slug(model.name), schemas)}
    forms = {kind: {"schema": form} for kind, form in _forms(media["schema"], schemas).items()}
    if model.example is not None:
        media["example"] = model.example
    return {"required": True, "content": {"application/json": media, **forms}}


def _forms(reference: Json, schemas: Json) -> Json:
    """The schemas of the same body as a form: what is base64 in JSON may be a file."""
    name = reference.get("$ref", "").rsplit("/", 1)[-1]
    properties = schemas.get(name, {}).get("properties")
    if not properties:
        return {}
    parts = {
        field: {"type": "string", "format": "binary"} if "contentEncoding" in part else _pointer(name, field)
        for field, part in properties.items()
    }
    form = {"type": "object", "properties": parts, "required": schemas[name].get("required", [])}
    return {"multipart/form-data": form, "application/x-www-form-urlencoded": reference}


def _query(reference: Json, schemas: Json) -> list[Json]:
    """The fields of a body as query parameters."""
    name = reference.get("$ref", "").rsplit("/", 1)[-1]
    schema = schemas.get(name, {})
    return [
        {"name": field, "in": "query", "required": field in schema.get("required", []), "schema": _pointer(name, field)}
        for field in schema.get("properties", {})
    ]


def _pointer(name: str, field: str) -> Json:
    escaped = quote(field.replace("~", "~0").replace("/", "~1"), safe="~")
    return _reference("schemas", f"{name}/properties/{escaped}")


def _answer(model: ModelInfo, shared: Json, schemas: Json) -> Json:
    """The response of a model that says what it answers, or was seen to; anything else may be JSON or bytes."""
    media = model.answer_media or ("application/json" if model.answer_schema else "")
    if not media:
        return shared
    said: Json = {"schema": {}}
    if model.answer_schema is not None and "json" in media:
        said = {"schema": _adopt(model.answer_schema, _slug(model.name), schemas, "Answer")}
    if model.answer_example is not None:
        said["example"] = model.answer_example
    return shared | {"content": {media.partition(";")[0]: said}}


def _with_events(answer: Json) -> Json:
    """The same, and what `Accept: text/event-stream` gets."""
    last = 'event: final\ndata: {"quality":"full","source":"computed","members":1,"of_members":1,"answer":{}}\n\n'
    told = "Pieces of the answer or better and better ones (`piece`, `answer`), then `final` or `error`."
    events = {"schema": {"type": "string", "description": told}, "example": last}
    return answer | {"content": answer["content"] | {"text/event-stream": events}}


# --- a model's JSON Schema becomes components --------------------------------------------------------

_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_DATA = frozenset({"const", "enum", "default", "example", "examples"})


def _adopt(schema: Mapping[str, Any], owner: str, schemas: Json, part_name: str = "Body") -> Json:
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
        root_name = _claim(f"{owner}.{part_name}", schemas)

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
