"""What a server says of itself: where its model answers, within which time, and a body it can answer."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.lab.load.client import Address, fetch
from timebound.lab.load.requests import Payload
from timebound.schema import follow, made_up, sample

PATIENCE_S = 5.0
SOURCES = ("example", "samples", "schema")
"""Where bodies come from that nobody gave: the model's example (else its samples, else one that fits its schema), its
samples in turn, or many different ones that fit its schema."""
MADE_UP = 200


@dataclass(frozen=True)
class Found:
    """One model of a server; no payloads if it takes bytes that cannot be made up."""

    path: str
    deadline_s: float | None
    payloads: list[Payload]
    # Equal bodies are one request to it, and would be computed once.
    knows_by_content: bool = False


async def discover(
    address: Address,
    path: str,
    model: str | None,
    source: str | None,
    headers: Sequence[tuple[str, str]] = (),
) -> Found | None:
    """The model at `path`, or the one so named, or the only one; None if the server tells of none.

    `source` is where payloads come from, one of `SOURCES`; None if there are some. `headers` are sent along: an API
    key may be wanted. Raises `SetupError` if nobody listens, if the key is refused, or if the choice is not clear.
    Who brings payload and path is only helped.
    """
    is_help = source is None and path != "/"
    status = await _get_json(address, "/v1/models", is_help, headers)
    models = status.get("models") if isinstance(status, dict) else None
    if isinstance(models, list) and models and all(isinstance(each, dict) and "paths" in each for each in models):
        if is_help and not any(path in each["paths"] for each in models):
            return None
        chosen = _choose(models, path, model)
        told = None
        if source is not None and chosen.get("samples") and (source == "samples" or chosen.get("example") is None):
            told = await _get_json(address, f"/v1/models/{chosen['name']}/samples", is_help=True, headers=headers)
        samples = (told or {}).get("samples") or []
        payloads = payloads_of({**chosen, "samples": samples}, source) if source is not None else []
        there = path if path in chosen["paths"] else str(chosen["paths"][0])
        return Found(there, float(chosen["deadline_s"]), payloads, chosen.get("cache") == "content")
    document = None if is_help else await _get_json(address, "/openapi.json", is_help, headers)
    if isinstance(document, dict) and isinstance(document.get("paths"), dict):
        return from_openapi(document, path, source)
    return None


async def read_models(address: Address, headers: Sequence[tuple[str, str]] = ()) -> list[Mapping[str, Any]]:
    """What a Timebound server lists at /v1/models; of another server nothing."""
    status = await _get_json(address, "/v1/models", is_help=True, headers=headers)
    models = status.get("models") if isinstance(status, dict) else None
    return [each for each in models or [] if isinstance(each, dict) and "paths" in each and "name" in each]


async def _get_json(address: Address, path: str, is_help: bool, headers: Sequence[tuple[str, str]]) -> Any:
    own = (("Host", address.host_header), ("Accept", "application/json"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*own, *headers))
    try:
        reply = await fetch(address, f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode(), PATIENCE_S)
        if reply.status == 401 and not is_help:
            raise SetupError(f"{address.host_header} wants an API key; give it with -H 'X-API-Key: KEY'")
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
        wrong = f"the server has no model {name!r}; it has: {names}"
    elif path != "/":
        chosen = [model for model in models if path in model["paths"]][:1]
        wrong = f"no model of the server answers at {path}; give --body, or a path of {names}"
    else:
        # Versions that share a model's requests are listed too, as NAME@VERSION; the model itself is what is asked.
        chosen = [model for model in models if "@" not in str(model["name"])] or [models[0]]
        wrong = f"the server has several models; choose one with --model: {names}"
    if len(chosen) != 1:
        raise SetupError(wrong)
    return chosen[0]


def payloads_of(model: Mapping[str, Any], source: str) -> list[Payload]:
    """What a model can be asked, by its entry in /v1/models and its samples."""
    example, samples = model.get("example"), model["samples"]
    if source == "samples" and not samples:
        raise SetupError(f"{model['name']} has no samples; name some in its class, or leave out --from")
    if model.get("body") == "raw":
        if source == "schema":
            raise SetupError(f"{model['name']} takes raw bytes and has no schema; give some with --folder")
        if isinstance(example, str) and source == "example":
            return [Payload(example.encode(), "text/plain")]
        return [
            Payload(base64.b64decode(each["data"]), each.get("media") or "application/octet-stream", name=each["title"])
            for each in samples
            if each.get("data")
        ]
    return [example_payload(body, model.get("key")) for body in _bodies(model, source)]


def _bodies(model: Mapping[str, Any], source: str) -> list[Any]:
    example, schema = model.get("example"), model.get("request_schema")
    if source == "schema":
        if schema is None:
            raise SetupError(f"{model['name']} has no schema; give its class a Request, or leave out --from")
        return _made_up(schema)
    if source == "example" and example is not None:
        return [example]
    return [each["body"] for each in model["samples"] if each.get("body") is not None]


def _made_up(schema: dict[str, Any], defs: dict[str, Any] | None = None) -> list[Any]:
    rng = random.Random(1)  # the same in every run, so that runs can be compared
    return [made_up(schema, rng, defs) for _ in range(MADE_UP)]


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


def from_openapi(document: Mapping[str, Any], path: str, source: str | None) -> Found | None:
    """The operation at `path`, or the first that takes a JSON body."""
    paths = document["paths"]
    schemas = document.get("components", {}).get("schemas", {})
    for known in [path] if path in paths else [] if path != "/" else list(paths):
        media = paths[known].get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if media is not None:
            schema = follow(media.get("schema", {}), schemas)
            bodies = _made_up(schema, schemas) if source == "schema" else [_example(media, schema, schemas)]
            return Found(known, None, [Payload(msgspec.json.encode(body)) for body in bodies])
    return None


def _example(media: Mapping[str, Any], schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    if "example" in media:
        return media["example"]
    for named in media.get("examples", {}).values():
        if "value" in named:
            return named["value"]
    if schema.get("examples"):
        return schema["examples"][0]
    return schema.get("example", sample(schema, schemas))
