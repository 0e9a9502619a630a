"""Which path asks which model in which protocol; follows the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from timebound.http.surfaces import SURFACES
from timebound.http.surfaces.base import Apart, Gradual, Surface
from timebound.http.target import TARGET, path_of
from timebound.requests.identity import Identity
from timebound.types import ModelInfo

_NONE: frozenset[bytes] = frozenset()


class Route:
    """One way to one model: its protocol, how long an answer may take, and what a request is known by."""

    __slots__ = (
        "apart", "deadline_s", "gradual", "identity", "info", "is_whole", "methods", "model", "served", "surface",
        "takes_rest", "takes_target", "version",
    )  # fmt: skip

    def __init__(self, info: ModelInfo, surface: Surface, *, is_version: bool = False) -> None:
        self.surface = surface
        self.info = info
        self.is_whole = getattr(surface, "is_whole", False)
        self.methods: frozenset[bytes] = getattr(surface, "methods", _NONE)
        self.takes_rest = is_version and getattr(surface, "takes_rest", False)
        self.takes_target = self.takes_rest or getattr(surface, "takes_query", False)
        self.apart = surface if isinstance(surface, Apart) else None
        self.gradual = surface if isinstance(surface, Gradual) else None
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
        for surface in _surfaces_for(info):
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
        for path in _LONE_PATHS - taken:
            self.by_path.pop(path, None)
        if len(models) == 1:
            for surface in _surfaces_for(models[0]):
                path = getattr(surface, "lone_path", "").encode()
                if path and path not in self.by_path:
                    self.by_path[path] = Route(models[0], surface(models[0]))


_LONE_PATHS = {path.encode() for path in (getattr(surface, "lone_path", "") for surface in SURFACES) if path}


def _surfaces_for(info: ModelInfo) -> list[type[Surface]]:
    return [surface for surface in SURFACES if getattr(surface, "is_for", _all)(info)]


def _all(info: ModelInfo) -> bool:
    return True


def find(routes: Mapping[bytes, Route], url: bytes, headers: list[tuple[bytes, bytes]]) -> Route | None:
    """The route of a target that is more than a path, or begins with one; what else it says goes to the headers.

    A slash at the end does no harm, in any protocol.
    """
    path = path_of(url)
    route = routes.get(path)
    if route is None and path.endswith(b"/"):
        route = routes.get(path[:-1])
    if route is None:
        route = routes.get(b"/".join(path.split(b"/", 4)[:4]))
        if route is None or not route.takes_rest:
            return None
    if route.takes_target:
        headers.append((TARGET, url))
    return route
