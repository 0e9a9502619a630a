"""What a server says of itself: where its model answers, within which time, and a body it can answer."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.lab.load.client import Address, fetch
from timebound.lab.load.requests import Payload
from timebound.schema import sample

PATIENCE_S = 5.0


@dataclass(frozen=True)
class Found:
    """One model of a server; no payloads if it takes bytes that cannot be made up."""

    path: str
    deadline_s: float | None
    payloads: list[Payload]
    # Equal bodies are one request to it, and would be computed once.
    knows_by_content: bool = False


async def discover(address: Address, path: str, model: str | None, *, needs_payload: bool) -> Found | None:
    """The model at `path`, or the one so named, or the only one; None if the server tells of none.

    Raises `SetupError` if nobody listens, or if the choice is not clear. Who brings payload and path is only helped.
    """
    is_help = not needs_payload and path != "/"
    status = await _get_json(address, "/v1/models", is_help)
    models = status.get("models") if isinstance(status, dict) else None
    if isinstance(models, list) and models and all(isinstance(each, dict) and "paths" in each for each in models):
        if is_help and not any(path in each["paths"] for each in models):
            return None
        return _from_model(_choose(models, path, model), path)
    document = None if is_help else await _get_json(address, "/openapi.json", is_help)
    if isinstance(document, dict) and isinstance(document.get("paths"), dict):
        return from_openapi(document, path)
    return None


async def _get_json(address: Address, path: str, is_help: bool) -> Any:
    request = f"GET {path} HTTP/1.1\r\nHost: {address.host_header}\r\nAccept: application/json\r\n\r\n".encode()
    try:
        reply = await fetch(address, request, PATIENCE_S)
        return msgspec.json.decode(reply.body) if reply.status == 200 else None
    except TimeoutError:
        if is_help:
            return None
        raise SetupError(f"{address.host_header} did not answer within {PATIENCE_S:g} s; is it busy?") from None
    except ConnectionError as error:
        if str(error) in ("closed before the answer", "connection reset", "answer is not HTTP"):
            return None  # somebody listens; this path is not for them
        raise SetupError(f"no connection to {address.host_header}: {error}; is the server running?") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _choose(models: Sequence[Mapping[str, Any]], path: str, name: str | None) -> Mapping[str, Any]:
    names = ", ".join(str(model["name"]) for model in models)
    if name is not None:
        chosen = [model for model in models if model["name"] == name]
        if not chosen:
            raise SetupError(f"the server has no model {name!r}; it has: {names}")
        return chosen[0]
    if path != "/":
        chosen = [model for model in models if path in model["paths"]]
        if not chosen:
            raise SetupError(f"no model of the server answers at {path}; give --body, or a path of {names}")
        return chosen[0]
    if len(models) > 1:
        raise SetupError(f"the server has several models; choose one with --model: {names}")
    return models[0]


def _from_model(model: Mapping[str, Any], path: str) -> Found:
    chosen = path if path in model["paths"] else str(model["paths"][0])
    return Found(chosen, float(model["deadline_s"]), payloads_of(model), model.get("cache") == "content")


def payloads_of(model: Mapping[str, Any]) -> list[Payload]:
    """What a model can be asked, by its entry in /v1/models: its example, else its samples."""
    example, samples = model.get("example"), model.get("samples") or []
    if model.get("body") == "raw":
        if isinstance(example, str):
            return [Payload(example.encode(), "text/plain")]
        return [
            Payload(base64.b64decode(each["data"]), each.get("media") or "application/octet-stream", name=each["title"])
            for each in samples
            if each.get("data")
        ]
    bodies = [example] if example is not None else [each["body"] for each in samples if each.get("body") is not None]
    return [example_payload(body, model.get("key")) for body in bodies]


def example_payload(example: Any, key: str | None) -> Payload:
    """A model's example, with a key of its own for every request: the same key again would be a repeat."""
    if key is None or not isinstance(example, dict):
        return Payload(msgspec.json.encode(example))
    body = msgspec.json.decode(msgspec.json.encode(example))
    place, *names = body, *key.split(".")
    for name in names[:-1]:
        place = place.setdefault(name, {})
    is_number = isinstance(place.get(names[-1]), int)
    place[names[-1]] = "{i}" if is_number else "{uuid}"
    text = msgspec.json.encode(body)
    return Payload(text.replace(b'"{i}"', b"{i}") if is_number else text, has_places=True)


def from_openapi(document: Mapping[str, Any], path: str) -> Found | None:
    """The operation at `path`, or the first that takes a JSON body."""
    paths = document["paths"]
    schemas = document.get("components", {}).get("schemas", {})
    for known in [path] if path in paths else [] if path != "/" else list(paths):
        media = paths[known].get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if media is not None:
            return Found(known, None, [Payload(msgspec.json.encode(_example(media, schemas)))])
    return None


def _example(media: Mapping[str, Any], schemas: dict[str, Any]) -> Any:
    if "example" in media:
        return media["example"]
    for named in media.get("examples", {}).values():
        if "value" in named:
            return named["value"]
    schema = media.get("schema", {})
    if "$ref" in schema:
        schema = schemas.get(schema["$ref"].rsplit("/", 1)[1], {})
    if schema.get("examples"):
        return schema["examples"][0]
    return schema.get("example", sample(dict(schema), schemas))
