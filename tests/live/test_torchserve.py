"""Started and managed as TorchServe and MMS are: their flags, their properties, their management."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import Serving, clean_environment, eventually
from tests.models import archives

pytestmark = pytest.mark.live


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for pack in (archives.digits, archives.mood, archives.custom):
        pack(folder)
    newer = tmp_path_factory.mktemp("newer")
    archives.custom(newer, "2.0").rename(folder / "newer.mar")
    (folder / "broken.mar").write_bytes(b"no archive")
    return folder


class Managed(NamedTuple):
    """A server that began without a model: its three addresses."""

    serving: Serving
    http: httpx.Client
    management: httpx.Client
    metrics: httpx.Client


@pytest.fixture(scope="module")
def managed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    folder = tmp_path_factory.mktemp("managed")
    main, management_port, metrics_port = free_port(), free_port(), free_port()
    (folder / "config.properties").write_text(
        f"management_address=http://127.0.0.1:{management_port}\nmetrics_address=http://127.0.0.1:{metrics_port}\n"
        "number_of_netty_threads=4\ndefault_workers_per_model=1\n"
    )
    arguments: list[str | Path] = ["--start", "--foreground", "--ncs", "--model-store", store, "--disable-token-auth"]
    serving = Serving(
        "torchserve", *arguments, "--ts-config", folder / "config.properties",
        environment={"XDG_CACHE_HOME": str(folder)}, until_ready=False, port=main,
    )  # fmt: skip
    ports = (main, management_port, metrics_port)
    clients = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) for port in ports]
    with serving, clients[0] as http, clients[1] as management, clients[2] as metrics:
        serving.wait_for_line("open the page")
        yield Managed(serving, http, management, metrics)


def test_models_are_registered_asked_described_and_unregistered(managed: Managed) -> None:
    _, http, management, _ = managed
    assert http.get("/ping").json()["status"] == "Healthy"
    assert management.get("/models").json() == {"models": []}
    said = management.post("/models?url=mood.mar&initial_workers=1&synchronous=true")
    assert (said.status_code, said.json()["status"]) == (
        200, 'Model "mood" Version: 1.0 registered with 1 initial workers',
    )  # fmt: skip
    assert http.post("/predictions/mood", content=b"great").text == "good"
    assert http.post("/invocations", content=b"great").text == "good"  # it is the only one
    wish = {"url": "digits.mar", "model_name": "numbers", "batch_size": 4, "response_timeout": 7, "synchronous": True}
    management.post("/models", json=wish).raise_for_status()
    assert management.get("/models").json()["models"] == [
        {"modelName": "mood", "modelUrl": "mood.mar"},
        {"modelName": "numbers", "modelUrl": "digits.mar"},
    ]
    (described,) = management.get("/models/numbers").json()
    assert (described["modelVersion"], described["batchSize"], described["responseTimeout"]) == ("2.0", 4, 7)
    assert [worker["status"] for worker in described["workers"]] == ["READY"]
    assert management.put("/models/mood?min_worker=1&synchronous=true").json()["status"] == (
        "Workers scaled to 1 for model: mood"
    )
    assert "updated" in management.put("/models/numbers/2.0/set-default").json()["status"]
    assert management.delete("/models/numbers/2.0").json() == {"status": 'Model "numbers" unregistered'}
    gone = http.post("/predictions/numbers", content=b"x")
    assert (gone.status_code, gone.json()) == (
        404, {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: numbers"},
    )  # fmt: skip
    assert management.delete("/models/mood").status_code == 200
    assert management.get("/models").json() == {"models": []}


def test_the_default_version_answers_and_changes_with_set_default(managed: Managed) -> None:
    _, http, management, metrics = managed

    def answered(path: str = "/predictions/custom") -> Any:
        return http.post(path, content=b"x").json()["version"]

    for file in ("custom.mar", "newer.mar"):
        management.post(f"/models?url={file}").raise_for_status()
    assert (answered(), answered("/predictions/custom/2.0")) == ("1.0", "2.0")
    management.put("/models/custom/2.0/set-default").raise_for_status()
    assert (answered(), answered("/predictions/custom/1.0")) == ("2.0", "1.0")
    shown = metrics.get("/metrics")
    assert shown.status_code == 200
    assert 'timebound_handler_counts_total{model="custom"' in shown.text
    for version in ("1.0", "2.0"):
        management.delete(f"/models/custom/{version}").raise_for_status()


def test_a_model_that_is_scaled_to_two_workers_is_computed_by_two_at_once(managed: Managed, gate: Gate) -> None:
    serving, http, management, _ = managed
    management.post("/models?url=custom.mar").raise_for_status()
    (before,) = management.get("/models/custom").json()
    said = management.put("/models/custom?min_worker=2&synchronous=true")
    assert (said.status_code, said.json()["status"]) == (200, "Workers scaled to 2 for model: custom")
    (after,) = management.get("/models/custom").json()
    assert (len(before["workers"]), len(after["workers"])) == (1, 2)

    def ask() -> Any:
        return http.post("/predictions/custom", data={"gate": str(gate.path)}).json()

    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(ask)
        eventually(lambda: serving.is_holding(running=1), "the first request in a handler")
        second = clients.submit(ask)
        eventually(lambda: serving.is_holding(running=2), "the second one in another worker")
        gate.open()
        pids = {asked.result()["pid"] for asked in (first, second)}
    assert pids == {worker["pid"] for worker in after["workers"]}
    management.put("/models/custom?min_worker=1&synchronous=true").raise_for_status()
    management.delete("/models/custom").raise_for_status()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/models/custom?min_worker=100000", 400, "min_worker is 100000; it may be 256 at most"),
        ("/models/custom?min_worker=0", 400, "a model without workers is not supported"),
        ("/models/custom/9.0?min_worker=1", 404, "Model version: 9.0 does not exist for model: custom"),
        ("/models/custom?model_version=9.0&min_worker=1", 404, "Model version: 9.0 does not exist for model: custom"),
        ("/models/nobody?min_worker=1", 404, "Model not found: nobody"),
    ],
)
def test_what_cannot_be_scaled_is_told(managed: Managed, path: str, status: int, said: str) -> None:
    management = managed.management
    management.post("/models?url=custom.mar").raise_for_status()
    try:
        answer = management.put(path)
    finally:
        management.delete("/models/custom").raise_for_status()
    assert answer.status_code == status
    assert said in answer.json()["message"]


@pytest.mark.parametrize(
    ("wish", "status", "said"),
    [
        ("", 400, "Parameter url is required."),
        ("?url=gone.mar", 404, "Model not found at: gone.mar"),
        ("?url=../mood.mar", 404, "Relative path is not allowed in url: ../mood.mar"),
        ("?url=http://127.0.0.1/mood.mar", 400, "is not fetched"),
        ("?url=a%00b.mar", 400, "is no name of a file in the model store"),
        (f"?url={'a' * 256}.mar", 400, "is no name of a file in the model store"),
        (f"?url={'a/' * 600}b.mar", 400, "is no name of a file in the model store"),
        ("?url=broken.mar", 409, "broken.mar is no archive that can be read"),
        ("?url=mood.mar&batch_size=many", 400, "batch_size is 'many'"),
        ("?url=mood.mar&initial_workers=many", 400, "initial_workers is 'many'"),
        ("?url=mood.mar&model_name=x&handler=gone.py", 409, "its handler is 'gone.py'"),
    ],
)
def test_what_cannot_be_registered_is_told_and_changes_nothing(
    managed: Managed, wish: str, status: int, said: str
) -> None:
    management = managed.management
    before = management.get("/models").json()
    answer = management.post(f"/models{wish}")
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert said in answer.json()["message"]
    assert management.get("/models").json() == before


def test_only_the_operator_manages(managed: Managed) -> None:
    serving, http, management, _ = managed
    for ask, headers in ((http, {}), (management, {"host": "evil.example"}), (management, {"origin": "http://a.b"})):
        assert ask.get("/models", headers=headers).status_code == 403
        assert ask.post("/models?url=mood.mar", headers=headers).status_code == 403
        assert ask.delete("/models/mood", headers=headers).status_code == 403
    assert serving.operator.get("/models").status_code == 200


def test_the_description_of_the_api_and_what_is_ignored_are_told(managed: Managed) -> None:
    serving, http, *_ = managed
    assert http.get("/api-description").json()["openapi"].startswith("3.")
    assert http.options("/").json()["openapi"].startswith("3.")
    assert serving.lines("the property number_of_netty_threads is ignored")
    assert serving.lines("--no-config-snapshots is ignored")


def test_it_starts_in_the_background_says_so_and_stops(store: Path, tmp_path: Path) -> None:
    port = free_port()
    environment = {**clean_environment(), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    def run(*words: str | Path, out: Path = Path(os.devnull)) -> int:
        command = [sys.executable, "-m", "timebound.cli", "torchserve", *words]
        with out.open("ab") as sink:
            return subprocess.run(
                command, stdout=sink, stderr=sink, env=environment, stdin=subprocess.DEVNULL, timeout=60, check=False
            ).returncode

    said = tmp_path / "said"
    arguments = ("--model-store", store, "--models", "feeling=mood.mar", "--port", str(port), "--workers", "1")
    assert run("--start", *arguments, out=said) == 0
    try:
        eventually(lambda: "Model server started.\n" in said.read_text(), "the word that it has started")
        answer = httpx.post(f"http://127.0.0.1:{port}/predictions/feeling", content=b"awful")
        assert answer.text == "bad"
        assert run("--start", *arguments) != 0
    finally:
        print(said.read_text())
        assert run("--stop", out=said) == 0
    assert "TorchServe has stopped." in said.read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/ping")
