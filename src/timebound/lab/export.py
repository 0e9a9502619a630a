"""What a bench run would send, written for other tools: a plan for JMeter, a collection for Postman."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from timebound.errors import SetupError
from timebound.lab.bench import Plan
from timebound.lab.load.client import Address
from timebound.lab.load.discovery import payloads_of, read_models
from timebound.lab.load.requests import Form, Payload

_IN_JMETER = {"{uuid}": "${__UUID()}", "{i}": "${__counter(FALSE,)}", "{now}": "${__time(/1000,)}"}
_IN_POSTMAN = {"{uuid}": "{{$guid}}", "{i}": "{{$randomInt}}", "{now}": "{{$timestamp}}"}
_OF_THE_SERVER = ("/readyz", "/v1/models", "/metrics", "/openapi.json")
_LONG_S = 3600


@dataclass(frozen=True)
class Asked:
    """Whom a run asks, and how."""

    address: Address
    form: Form
    payload: Payload


@dataclass(frozen=True)
class Route:
    """One request of a model or of its server."""

    folder: str
    method: str
    path: str
    payload: Payload | None = None


def check_ending(file: Path) -> None:
    """Raises `SetupError` if the file's name does not say for which tool it is."""
    if file.suffix not in _WRITERS:
        raise SetupError(f"--export {file}: end its name with .jmx for JMeter or .json for Postman")


def write(file: Path, asked: Asked, routes: Sequence[Route], plan: Plan) -> str:
    """The text of the file."""
    return _WRITERS[file.suffix](asked, routes, plan)


async def routes(asked: Asked) -> list[Route]:
    """Every route of the models that a Timebound server lists, and its own; of another server, what would be sent."""
    found = [Route("asked", asked.form.method, asked.form.path, asked.payload)]
    models = await read_models(asked.address, asked.form.headers)
    for model in models:
        payloads = payloads_of({**model, "samples": []}, "example")
        if payloads:
            paths = dict.fromkeys(str(path) for path in model["paths"])
            found += [Route(str(model["name"]), "POST", path, payloads[0]) for path in paths]
    return found + [Route("server", "GET", path) for path in _OF_THE_SERVER if models]


def _text(payload: Payload, places: dict[str, str]) -> str:
    try:
        text = payload.body.decode()
    except UnicodeDecodeError:
        raise SetupError("--export writes texts, and this model takes bytes that are none; give --body TEXT") from None
    return _filled(text, places) if payload.has_places else text


def _filled(text: str, places: dict[str, str]) -> str:
    for place, function in places.items():
        text = text.replace(place, function)
    return text


def _headers(asked: Asked, payload: Payload | None, places: dict[str, str]) -> dict[str, str]:
    own = {name: _filled(value, places) for name, value in asked.form.headers}
    if payload is not None and payload.body and "content-type" not in {name.lower() for name in own}:
        own["Content-Type"] = payload.content_type
    return own


# ---------------------------------------------------------------------- Postman


def _postman(asked: Asked, routes: Sequence[Route], plan: Plan) -> str:
    folders: dict[str, list[dict[str, Any]]] = {}
    for route in routes:
        folders.setdefault(route.folder, []).append(_request(asked, route))
    base = f"{'https' if asked.address.tls else 'http'}://{asked.address.host_header}"
    collection = {
        "info": {
            "name": f"{asked.address.host_header} (Timebound)",
            "_postman_id": str(uuid.uuid5(uuid.NAMESPACE_URL, base)),
            "schema": "https://schema.getpostman.com/json/collection/v2.1.0/collection.json",
        },
        "variable": [{"key": "server", "value": base}],
        "item": [{"name": name, "item": requests} for name, requests in folders.items()],
    }
    return json.dumps(collection, indent=2, ensure_ascii=False) + "\n"


def _request(asked: Asked, route: Route) -> dict[str, Any]:
    headers = _headers(asked, route.payload, _IN_POSTMAN)
    parts = urlsplit(route.path)
    request: dict[str, Any] = {
        "method": route.method,
        "header": [{"key": name, "value": value} for name, value in headers.items()],
        "url": {
            "raw": f"{{{{server}}}}{route.path}",
            "host": ["{{server}}"],
            "path": parts.path.strip("/").split("/"),
            **({"query": [_pair(each) for each in parts.query.split("&")]} if parts.query else {}),
        },
    }
    if route.payload is not None and route.payload.body:
        language = "json" if "json" in route.payload.content_type else "text"
        text = _text(route.payload, _IN_POSTMAN)
        request["body"] = {"mode": "raw", "raw": text, "options": {"raw": {"language": language}}}
    return {"name": f"{route.method} {route.path}", "request": request, "response": []}


def _pair(query: str) -> dict[str, str]:
    name, _, value = query.partition("=")
    return {"key": name, "value": value}


# ---------------------------------------------------------------------- JMeter


def _jmeter(asked: Asked, routes: Sequence[Route], plan: Plan) -> str:
    root = Element("jmeterTestPlan", version="1.2", properties="5.0", jmeter="5.6.3")
    tree = SubElement(root, "hashTree")
    _named(tree, "TestPlan", "TestPlanGui", f"Timebound: {asked.address.host_header}")
    inside = SubElement(tree, "hashTree")
    _thread_group(inside, plan)
    group = SubElement(inside, "hashTree")
    _sampler(group, asked, plan)
    below = SubElement(group, "hashTree")
    _header_manager(below, asked)
    SubElement(below, "hashTree")
    if plan.rate is not None:
        _named(below, "ConstantThroughputTimer", "TestBeanGUI", f"{plan.rate:g} requests per second", {
            "throughput": f"{plan.rate * 60:g}", "calcMode": 2,
        })  # fmt: skip
        SubElement(below, "hashTree")
    _named(inside, "ResultCollector", "SummaryReport", "Summary")
    SubElement(inside, "hashTree")
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _thread_group(tree: Element, plan: Plan) -> None:
    """As many threads as clients; for a rate, as many as may wait at once."""
    threads = plan.clients if plan.rate is None else max(1, min(500, round(plan.rate * 2)))
    group = _named(tree, "ThreadGroup", "ThreadGroupGui", plan.title, {
        "ThreadGroup.num_threads": threads, "ThreadGroup.ramp_time": 0, "ThreadGroup.same_user_on_next_iteration": True,
        "ThreadGroup.scheduler": plan.seconds is not None, "ThreadGroup.duration": round(plan.seconds or _LONG_S),
        "ThreadGroup.on_sample_error": "continue",
    })  # fmt: skip
    loop = SubElement(group, "elementProp", name="ThreadGroup.main_controller", elementType="LoopController")
    loops = -1 if plan.requests is None else -(-plan.requests // threads)
    _properties(loop, {"LoopController.continue_forever": False, "LoopController.loops": loops})


def _sampler(tree: Element, asked: Asked, plan: Plan) -> None:
    host, _, port = asked.address.host_header.rpartition(":")
    if not host or not port.isdecimal():
        host, port = asked.address.host_header, ""
    sampler = _named(tree, "HTTPSamplerProxy", "HttpTestSampleGui", f"{asked.form.method} {asked.form.path}", {
        "HTTPSampler.protocol": "https" if asked.address.tls else "http", "HTTPSampler.domain": host,
        "HTTPSampler.port": port, "HTTPSampler.path": asked.form.path, "HTTPSampler.method": asked.form.method,
        "HTTPSampler.use_keepalive": True, "HTTPSampler.postBodyRaw": True, "HTTPSampler.contentEncoding": "UTF-8",
        "HTTPSampler.response_timeout": f"{plan.timeout_s * 1000:.0f}",
    })  # fmt: skip
    arguments = SubElement(sampler, "elementProp", name="HTTPsampler.Arguments", elementType="Arguments")
    rows = SubElement(arguments, "collectionProp", name="Arguments.arguments")
    if asked.payload.body:
        row = SubElement(rows, "elementProp", name="", elementType="HTTPArgument")
        text = _text(asked.payload, _IN_JMETER)
        _properties(row, {"HTTPArgument.always_encode": False, "Argument.value": text, "Argument.metadata": "="})


def _header_manager(tree: Element, asked: Asked) -> None:
    manager = _named(tree, "HeaderManager", "HeaderPanel", "Headers")
    rows = SubElement(manager, "collectionProp", name="HeaderManager.headers")
    for name, value in _headers(asked, asked.payload, _IN_JMETER).items():
        row = SubElement(rows, "elementProp", name="", elementType="Header")
        _properties(row, {"Header.name": name, "Header.value": value})


def _named(tree: Element, kind: str, gui: str, name: str, values: dict[str, Any] | None = None) -> Element:
    element = SubElement(tree, kind, guiclass=gui, testclass=kind, testname=name, enabled="true")
    _properties(element, values or {})
    return element


def _properties(element: Element, values: dict[str, Any]) -> None:
    for name, value in values.items():
        kind = "boolProp" if isinstance(value, bool) else "intProp" if isinstance(value, int) else "stringProp"
        SubElement(element, kind, name=name).text = str(value).lower() if isinstance(value, bool) else str(value)


_WRITERS = {".jmx": _jmeter, ".json": _postman}
