"""The map of the house, kept honest: imports point downward, never in a circle, and no room is a drawer."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import timebound

SOURCE = Path(timebound.__file__).parent
PACKAGE = "timebound"
ROOT = "__init__"  # the public names; stands for `import timebound` too
DRAWERS = {"utils", "common", "helpers", "misc"}

BASE = {"errors", "clock", "types", "version", "machine"}
NOUNS = {"body", "form", "model", "events", "config", "log", "image", "profile", "versions", "text", "schema"}
ALLOWED: Mapping[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "version": set(),
    "machine": {"errors"},
    "operator_socket": set(),
    "work_folder": set(),
    "types": {"errors"},
    **dict.fromkeys(NOUNS, BASE),
    "app_settings": {"errors"},
    "config": BASE | {"app_settings"},
    "body": BASE | {"schema"},
    "devices": BASE,
    "backends": BASE | NOUNS | {"devices"},
    "handlers": BASE | NOUNS | {"backends"},
    "importer": {"errors"},
    "reply": {"types"},
    "request_type": {"errors", "schema"},
    "methods": {"errors"},
    "model": BASE | {"methods", "request_type"},
    "answer_type": {"errors", "reply", "types"},
    "function": {"answer_type", "errors", "model"},
    "recipes": {"errors"},
    "target": BASE | NOUNS | {"app_settings", "backends", "function", "handlers", "importer", "recipes", "work_folder"},
    "scaffold": BASE,
    "convert": BASE | {"backends", "importer", "target"},
    "store": BASE | {"events", "config"},
    "scheduler": BASE,
    "catalogue": BASE | {"versions"},
    "requests": BASE | {"catalogue", "events", "scheduler", "store"},  # the store's contract
    "tensors": BASE | {"body", "store"},  # how fingerprints are made
    "workers": BASE
    | {"backends", "devices", "handlers", "importer", "target", "model", "body", "schema", "events", "log", "tensors"}
    | {"answer_type", "reply", "request_type", "text"},
    "lab": BASE
    | {
        "app_settings",
        "backends",
        "devices",
        "importer",
        "scheduler",
        "schema",
        "workers",
        "target",
        "model",
        "profile",
    },
    "admission": BASE,
    "reading": BASE | {"body", "form", "schema", "store", "workers"},
    "releases": BASE | {"events", "target", "versions", "work_folder", "workers"},
    "asking": BASE | {"body", "catalogue", "reading", "requests", "tensors"},
    "gateway": BASE
    | NOUNS
    | {"asking", "catalogue", "handlers", "reading", "releases", "requests", "scheduler", "store", "target", "workers"},
    "http": BASE
    | {"versions", "operator_socket"}
    | {
        "admission",
        "catalogue",
        "config",
        "events",
        "answer_type",
        "body",
        "form",
        "gateway",
        "handlers",
        "reading",
        "requests",
        "store",
        "tensors",
        ROOT,
    },
    "rpc": BASE
    | {
        "admission",
        "config",
        "events",
        "gateway",
        "http",
        "reading",
        "tensors",
    },  # a front beside http's, and its way in
    "observe": {"errors", "events", "types", "version"},
    "stack": BASE | {"config"},
    "pack": BASE | {"config", "stack"},
    "doctor": BASE
    | {"app_settings", "devices"}
    | {"admission", "config", "model", "events", "importer", "target", "store", "workers", "http", "lab"},
    "server": BASE
    | NOUNS
    | {"admission", "gateway", "http", "observe", "reading", "rpc", "work_folder", "workers", ROOT},
    "notebook": {"errors"},
    "program": BASE
    | {
        "app_settings",
        "importer",
        "client",
        "config",
        "gateway",
        "lab",
        "log",
        "model",
        "notebook",
        "server",
        "target",
    },
    "testing": BASE | {"app_settings", "model", "program", "target", "workers"},
    "guest": BASE | NOUNS | {"gateway", "http", "server"},
    "ray": {"errors", "config", "log", "asking", "guest"},
    "cli": {
        "handlers",
        "admission",
        "config",
        "convert",
        "app_settings",
        "doctor",
        "errors",
        "log",
        "machine",
        "pack",
        "scaffold",
        "target",
        "gateway",
        "server",
        "stack",
        ROOT,
        "clock",
        "events",
        "store",
        "lab",
        "profile",
        "operator_socket",
        "observe",  # the history's files are read without a server
        "workers",  # the first one's process is started before a server is there
    },
    "client": {"clock", "errors", "types", "version"},
    "__main__": {"cli"},
    # What users see: the public names, and a model written with nothing but them.
    ROOT: {
        "errors",
        "version",
        "model",
        "image",
        "text",
        "backends",
        "client",
        "gateway",
        "guest",
        "program",
        "reply",
        "testing",
    },
    "demo": {ROOT},
}


def modules(package: Path) -> dict[str, Path]:
    """Every module below `package` by its dotted name without the package's own; the package itself is ROOT."""
    found = {}
    for file in package.rglob("*.py"):
        parts = list(file.relative_to(package).with_suffix("").parts)
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
        found[".".join(parts)] = file
    return found


def imports(name: str, file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that a file names, at the top, inside functions or for type checking."""
    for node in ast.walk(ast.parse(file.read_text())):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, file, node)
            # `from package.room import thing` means the module package.room.thing if there is one.
            targets = [f"{base}.{alias.name}" for alias in node.names]
        for target in targets:
            if target.split(".")[0] == PACKAGE:
                yield _module(target, known)


def _base(name: str, file: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *name.split(".")] if name != ROOT else [PACKAGE]
    up = node.level - 1 if file.name == "__init__.py" else node.level
    return ".".join([*here[: len(here) - up], *([node.module] if node.module else [])])


def _module(target: str, known: Mapping[str, Path]) -> str:
    parts = target.split(".")[1:]
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts) or ROOT


def room(module: str) -> str:
    return module.partition(".")[0]


def wrong_imports(package: Path) -> list[str]:
    """Every import that leaves its room in a direction the map does not show."""
    known, wrong = modules(package), set()
    for name, file in known.items():
        if room(name) not in ALLOWED:
            wrong.add(f"{name}: the room {room(name)} is not on the map")
            continue
        for target in imports(name, file, known):
            if room(target) != room(name) and room(target) not in ALLOWED[room(name)]:
                wrong.add(f"{name} imports {target}")
    return sorted(wrong)


def circles(package: Path) -> list[str]:
    """Modules that can be reached from themselves."""
    known = modules(package)
    edges = {name: set(imports(name, file, known)) - {name} for name, file in known.items()}

    def reach(name: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges[name])
        while todo:
            following = todo.pop()
            if following not in seen:
                seen.add(following)
                todo.extend(edges.get(following, ()))
        return seen

    return sorted(name for name in known if name in reach(name))


def drawers(package: Path) -> list[str]:
    """Modules and rooms whose name says nothing."""
    return sorted(name for name in modules(package) if DRAWERS & set(name.split(".")))


def plant(package: Path, **files: str) -> Path:
    """A small package on disk; `room__module` is the file room/module.py."""
    for name, text in {ROOT: "", **files}.items():
        file = package.joinpath(*name.split("__")).with_suffix(".py") if name != ROOT else package / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


def test_imports_point_downward() -> None:
    assert wrong_imports(SOURCE) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circles(SOURCE) == []


def test_no_module_is_a_drawer() -> None:
    assert drawers(SOURCE) == []


def test_every_room_is_in_the_picture() -> None:
    picture = (Path(__file__).parents[1] / "docs/rooms.svg").read_text()
    words = set(re.findall(r"[a-z]+", picture))
    rooms = {folder.name for folder in SOURCE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert rooms - words == set()


def test_every_room_is_in_the_tour_with_a_file_to_begin_at() -> None:
    tour = (Path(__file__).parents[1] / "docs/tour.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| `([\w./]+)`", tour, re.MULTILINE))
    rooms = {folder.name for folder in SOURCE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert set(rows) == rooms
    assert [first for first in rows.values() if not (SOURCE / first).is_file()] == []


def test_the_checker_sees_an_import_that_points_upward(tmp_path: Path) -> None:
    package = plant(
        tmp_path / PACKAGE,
        workers__wire="",
        http__app="",
        scheduler__policy="from timebound.workers import wire\n",
        observe__metrics="from timebound.events import Events\n",
        events="",
        admission="from timebound.observe.metrics import Metrics\n",
    )
    assert wrong_imports(package) == [
        "admission imports observe.metrics",
        "scheduler.policy imports workers.wire",
    ]


def test_a_gateway_starts_without_what_only_workers_need() -> None:
    """Each of these takes longer to import than all of the gateway's own code, and every start waits for it."""
    heavy = "{'numpy', 'PIL', 'onnxruntime', 'torch', 'redis', 'grpc', 'timebound.workers.runner'}"
    code = f"import sys, timebound.server; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_scheduler_reads_no_clock_and_waits_for_nothing() -> None:
    forbidden = {"asyncio", "datetime", "os", "queue", "random", "selectors", "socket", "threading", "time"}
    files = sorted((SOURCE / "scheduler").glob("*.py"))
    found = {
        f"{file.name} imports {name}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
        if name.partition(".")[0] in forbidden or name == "timebound.clock"
    }  # fmt: skip
    assert files
    assert found == set()


def test_the_checker_sees_imports_that_hide(tmp_path: Path) -> None:
    package = plant(
        tmp_path / PACKAGE,
        server="",
        http__app="def late():\n    import timebound.server\n",
        scheduler__policy="from ..http import app\n",
        errors="if TYPE_CHECKING:\n    from timebound import server\n",
    )
    assert wrong_imports(package) == [
        "errors imports server",
        "http.app imports server",
        "scheduler.policy imports http.app",
    ]


def test_the_checker_sees_a_room_that_is_not_on_the_map(tmp_path: Path) -> None:
    package = plant(tmp_path / PACKAGE, cellar__wine="")
    assert wrong_imports(package) == ["cellar.wine: the room cellar is not on the map"]


def test_the_checker_sees_a_circle_inside_a_room(tmp_path: Path) -> None:
    package = plant(
        tmp_path / PACKAGE,
        http__app="from timebound.http.hot import start\n",
        http__hot="from timebound.http import shape\n",
        http__shape="from .app import App\n",
        http__problems="from timebound.http.app import App\n",
    )
    assert circles(package) == ["http.app", "http.hot", "http.shape"]


def test_the_checker_sees_a_drawer(tmp_path: Path) -> None:
    package = plant(tmp_path / PACKAGE, utils="", http__helpers="", http__misc__thing="", http__app="")
    assert drawers(package) == ["http.helpers", "http.misc.thing", "utils"]
