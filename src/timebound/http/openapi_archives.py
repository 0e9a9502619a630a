"""What the OpenAPI document says of model archives: every path that their clients ask, and their management.

The management is the same on every server that has archives, and lies beside this file in `openapi_archives.json`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from timebound.http.surfaces.torchserve import Explanations, Invocations, TorchServe
from timebound.types import ModelInfo

Json = dict[str, Any]

_METHODS = ("post", "get", "put")
_REST = {"name": "url_path", "in": "path", "required": True, "schema": {"type": "string"}}


def add_management(document: Json) -> None:
    """Describe what the operator asks of a server with archives."""
    more = _same_everywhere()
    document["tags"] += more["tags"]
    document["paths"] |= more["paths"]
    for kind, parts in more["components"].items():
        document["components"][kind] |= parts


def archive_paths(model: ModelInfo, begin: Callable[[str], Json], *, is_lone: bool) -> Json:
    """The paths of one archive; `begin` makes the operation that the path's is made from, with an id of its own."""
    paths: Json = {}
    for surface in (TorchServe, Explanations, Invocations):
        asked = [*surface.paths(model), *surface.version_paths(model)]
        if surface.takes_rest:
            asked += [f"{path}/{{url_path}}" for path in surface.version_paths(model) if not path.startswith("/v1/")]
        if is_lone and surface is Invocations:
            asked.append(Invocations.lone_path)
        for path in asked:
            paths[path] = {method: _operation(begin, method, has_rest=path.endswith("}")) for method in _METHODS}
    return paths


def _operation(begin: Callable[[str], Json], method: str, *, has_rest: bool) -> Json:
    shared = _same_everywhere()["operation"]
    made = begin(method) | {name: part for name, part in shared.items() if name not in ("tags", "parameters")}
    made["parameters"] = [*([_REST] if has_rest else []), *shared["parameters"]]
    if method == "get":
        del made["requestBody"]
    return made


@cache
def _encoded() -> bytes:
    return Path(__file__).with_name("openapi_archives.json").read_bytes()


def _same_everywhere() -> Json:
    same: Json = msgspec.json.decode(_encoded())
    return same
