"""Which path asks which model in which protocol; follows the catalogue."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import httptools

from timebound.http.surfaces import SURFACES
from timebound.http.surfaces.base import Surface
from timebound.requests.identity import Identity
from timebound.types import ModelInfo


class Route:
    """One way to one model: its protocol, how long an answer may take, and what a request is known by."""

    __slots__ = ("deadline_s", "identity", "model", "served", "surface", "version")

    def __init__(self, info: ModelInfo, surface: Surface, *, is_version: bool = False) -> None:
        self.surface = surface
        self.model = info.base
        self.served, self.version = (info.name, info.version) if is_version else ("", "")
        self.deadline_s = info.deadline_s
        self.identity = Identity(info, self.version)


class Routes:
    """Every path that asks a model."""

    def __init__(self) -> None:
        self.by_path: dict[bytes, Route] = {}
        self._of_model: dict[str, list[bytes]] = {}

    def add(self, info: ModelInfo) -> None:
        """Answer for this model from now on; one that is known may have other paths now."""
        self.remove(info.name)
        routes: dict[bytes, Route] = {}
        for surface in SURFACES:
            asked = surface(info)
            own = {path.encode(): Route(info, asked) for path in surface.paths(info)}
            own |= {path.encode(): Route(info, asked, is_version=True) for path in surface.version_paths(info)}
            routes = own | routes
        self.by_path |= routes
        self._of_model[info.name] = list(routes)

    def remove(self, name: str) -> None:
        """Answer no more for this model."""
        for path in self._of_model.pop(name, ()):
            self.by_path.pop(path, None)


def path_of(url: bytes) -> bytes:
    """The path of a request's target, which may be a whole address and have a query string or escapes."""
    path: bytes = httptools.parse_url(url).path or b""
    return unquote_to_bytes(path) if b"%" in path else path
