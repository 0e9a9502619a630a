"""Which path asks which model in which protocol; follows the catalogue."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import httptools

from timebound.http.surfaces import SURFACES
from timebound.http.surfaces.base import Apart, Surface
from timebound.requests.identity import Identity
from timebound.types import ModelInfo


class Route:
    """One way to one model: its protocol, how long an answer may take, and what a request is known by."""

    __slots__ = ("apart", "deadline_s", "identity", "info", "is_whole", "model", "served", "surface", "version")

    def __init__(self, info: ModelInfo, surface: Surface, *, is_version: bool = False) -> None:
        self.surface = surface
        self.info = info
        self.is_whole = getattr(surface, "is_whole", False)
        self.apart = surface if isinstance(surface, Apart) else None
        self.model = info.base
        self.served, self.version = (info.name, info.version) if is_version else ("", "")
        self.deadline_s = info.deadline_s
        self.identity = Identity(info, self.version)


class Routes:
    """Every path that asks a model."""

    def __init__(self) -> None:
        self.by_path: dict[bytes, Route] = {}
        self._of_model: dict[str, list[bytes]] = {}
        self._infos: dict[str, ModelInfo] = {}

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
        self._infos[info.name] = info
        self._find_lone()

    def remove(self, name: str) -> None:
        """Answer no more for this model."""
        for path in self._of_model.pop(name, ()):
            self.by_path.pop(path, None)
        self._infos.pop(name, None)
        self._find_lone()

    def _find_lone(self) -> None:
        """Answer at the paths for the only model, if there is just one and it has no such path of its own."""
        models = [info for info in self._infos.values() if info.name == info.base]
        taken = {path for paths in self._of_model.values() for path in paths}
        for surface in SURFACES:
            path = getattr(surface, "lone_path", "").encode()
            if path and path not in taken:
                self.by_path.pop(path, None)
                if len(models) == 1:
                    self.by_path[path] = Route(models[0], surface(models[0]))


def path_of(url: bytes) -> bytes:
    """The path of a request's target, which may be a whole address and have a query string or escapes."""
    path: bytes = httptools.parse_url(url).path or b""
    return unquote_to_bytes(path) if b"%" in path else path
