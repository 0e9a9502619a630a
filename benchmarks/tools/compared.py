"""Who is compared for everyday use: what a user types and writes, and how the first answer is asked for."""

import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ENVIRONMENTS, Environment
from benchmarks.tools.contestants import ROOT

APPS = ROOT / "benchmarks/serving/apps/compared"
# Longer than any of them takes for a request that it has accepted.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class App:
    """What is served, and one request with its answer."""

    name: str
    title: str
    body: Mapping[str, Any]
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """One contestant: its files are in `apps/compared/NAME`, `hello.py` and `network.py`."""

    name: str
    title: str
    # None: the environment of the benchmark itself.
    environment: Environment | None
    install: Mapping[str, str]
    # What starts an app and where it is asked, by the app's name.
    serve: Mapping[str, str]
    path: Mapping[str, str]
    # Words after the command that say the port.
    port_flag: str = ""
    # Where no flag says it: what is written in the file, and what the copy that runs has instead.
    port_edit: tuple[str, str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    # How often a user types curl for one answer.
    asks: int = 1
    # Where it listens if nothing is said; each start here gets a port of its own.
    usual_port: int = 8000
    ask: Callable[[str, Mapping[str, Any]], Any] = lambda url, body: json.loads(_posted(url, body))

    @property
    def package(self) -> str:
        """The package whose version is shown."""
        return "timebound" if self.environment is None else self.environment.package

    def file(self, app: str) -> Path:
        """What a user writes for this app."""
        return APPS / self.name / f"{app}.py"

    def lines(self, app: str) -> int:
        """How many lines of it have code."""
        lines = [line.strip() for line in self.file(app).read_text().splitlines()]
        return sum(bool(line) and not line.startswith("#") for line in lines)

    def typed(self, app: str) -> list[str]:
        """What a user types from an empty environment to the first answer."""
        url = f"http://127.0.0.1:{self.usual_port}{self.path[app]}"
        later = [f"curl {url}/EVENT"] * (self.asks - 1)
        return [self.install[app], self.serve[app], f"curl {url} --json '...'", *later]

    def lay_out(self, app: str, folder: Path, weights: Path, port: int) -> None:
        """Put what a user has into a folder: the app, the network's class and its weights."""
        text = self.file(app).read_text()
        if self.port_edit is not None:
            written, instead = self.port_edit
            assert written in text, f"{self.file(app)} does not say {written}"
            text = text.replace(written, instead.format(port=port))
        (folder / f"{app}.py").write_text(text)
        shutil.copy(APPS / "shared/net.py", folder)
        shutil.copy(weights, folder / "net.pth")

    def command(self, app: str, place: Path | None, port: int) -> list[str]:
        """What starts it, with the programs of its environment."""
        programs = Path(sys.executable).parent if place is None else place / "bin"
        program, *words = f"{self.serve[app]} {self.port_flag}".format(port=port).split()
        return [str(programs / program), *words]

    def answers(self, app: App, port: int) -> bool:
        """Whether it gives the right answer now."""
        try:
            return bool(self.ask(f"http://127.0.0.1:{port}{self.path[app.name]}", app.body) == app.answer)
        except (OSError, HTTPException, ValueError):
            return False


def _posted(url: str, body: Any) -> str:
    headers = {"content-type": "application/json"}
    return _read(urllib.request.Request(url, json.dumps(body).encode(), headers))


def _read(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def _by_event(url: str, body: Mapping[str, Any]) -> Any:
    """Gradio's way: the inputs in order are answered with the id of an event, which is asked for next."""
    event = json.loads(_posted(url, {"data": list(body.values())}))["event_id"]
    told = _read(urllib.request.Request(f"{url}/{event}"))
    return json.loads(told.partition("event: complete\ndata: ")[2])[0]


def _with_torch(environment: Environment) -> Environment:
    """Both apps are started from one environment, as Timebound's are."""
    return replace(environment, name=f"{environment.name}-torch", engine=("torch",))


def _alike(pattern: str) -> dict[str, str]:
    return {app: pattern.format(app=app) for app in ("hello", "network")}


def _installs(packages: str) -> dict[str, str]:
    return {"hello": f"pip install {packages}", "network": f"pip install {packages} torch"}


_RAY_PORT = """\
import ray

if not ray.is_initialized():
    serve.start(http_options={{"port": {port}}})
app = """

COMPARED = {
    each.name: each
    for each in (
        Compared(
            "timebound",
            "Timebound",
            None,
            {"hello": "pip install timebound", "network": "pip install 'timebound[torch]'"},
            _alike("timebound serve {app}.py"),
            {"hello": "/predictions/hello", "network": "/predictions/classify"},
            port_flag="--port {port}",
        ),
        Compared(
            "litserve",
            "LitServe",
            _with_torch(ENVIRONMENTS["litserve"]),
            _installs("litserve"),
            _alike("python {app}.py"),
            _alike("/predict"),
            port_edit=("port=8000", "port={port}"),
        ),
        Compared(
            "bentoml",
            "BentoML",
            _with_torch(ENVIRONMENTS["bentoml"]),
            _installs("bentoml"),
            {"hello": "bentoml serve hello:Hello", "network": "bentoml serve network:Classify"},
            {"hello": "/hello", "network": "/classify"},
            port_flag="--port {port}",
            env={"BENTOML_DO_NOT_TRACK": "True"},
            usual_port=3000,
        ),
        Compared(
            "fastapi",
            "FastAPI",
            _with_torch(ENVIRONMENTS["fastapi"]),
            _installs("fastapi uvicorn"),
            _alike("uvicorn {app}:app"),
            {"hello": "/hello", "network": "/classify"},
            port_flag="--port {port}",
        ),
        Compared(
            "gradio",
            "Gradio",
            _with_torch(Environment("gradio", ("gradio==6.31.0",))),
            _installs("gradio"),
            _alike("python {app}.py"),
            {"hello": "/gradio_api/call/hello", "network": "/gradio_api/call/classify"},
            port_edit=(".launch()", ".launch(server_port={port})"),
            env={"GRADIO_ANALYTICS_ENABLED": "False"},
            asks=2,
            usual_port=7860,
            ask=_by_event,
        ),
        Compared(
            "ray",
            "Ray Serve",
            _with_torch(ENVIRONMENTS["ray"]),
            _installs("'ray[serve]'"),
            _alike("serve run {app}:app"),
            _alike("/"),
            port_edit=("app = ", _RAY_PORT),
            # Never the cluster of somebody else.
            env={"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0"},
        ),
    )
}
