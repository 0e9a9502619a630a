"""A real Prometheus scrapes a server and is asked what the dashboard asks; promtool reads the metrics."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import Serving, eventually
from tests.observe.questions import dashboard, expressions_of_alerts, shipped

from timebound.events import Answered, BatchFinished, Events
from timebound.machine.nvml import Card
from timebound.observe.drift import Drift
from timebound.observe.gpus import GpuNumbers
from timebound.observe.metrics import Metrics
from timebound.observe.reference import LEAST
from timebound.types import ModelInfo, Outcome, Question, Report, Result, Run, Timing

IS_IN_CI = os.environ.get("CI") == "true"
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        shutil.which("prometheus") is None and not IS_IN_CI, reason="comes with the Debian package prometheus"
    ),
]

MODEL = """
import time
import timebound as tb

class Shop(tb.Model):
    path = "/shop"
    deadline = 0.2
    key = "id"
    example = {"id": "", "s": 0.0}

    class Request(tb.Struct):
        id: str
        s: float = 0.0

    def infer(self, batch):
        time.sleep(sum(each.s for each in batch))
        return [each.s for each in batch]

    def fallback(self, request):
        return 0.0

class Strict(tb.Model):
    path = "/strict"
    deadline = 0.05
    example = {}

    def infer(self, batch):
        time.sleep(0.04)
        return batch
"""


class Two:
    """Two GPUs."""

    def __init__(self) -> None:
        self.names: list[str] = ["0", "1"]

    def read(self) -> list[Card]:
        return [Card("a", 0.25, 10, 100), Card("b", 0.5, 20, 200)]


class Elsewhere:
    """The same metrics, of a server with what no test machine has: GPUs, and answers enough to know what is usual."""

    def __enter__(self) -> Elsewhere:
        events, gpus = Events(), GpuNumbers(Two())
        models = {"digits": ModelInfo(name="digits")}
        metrics = Metrics(events, {}, models=models, gpus=gpus)
        drift = Drift(events, models=models, wall=lambda: 0.0)
        metrics.show(drift)
        for number in range(LEAST + 200):
            outcome = Outcome(b'{"label": "a", "confidence": 0.%d}' % (90 + number % 7))
            events.emit(Answered(Question("r", "digits", b"{}", 0.0, 1.0), Result(outcome, version="1"), 200, 0.02))
            if number % 20 == 0:
                drift.take_in()

        def more() -> None:
            """Batches on a device go on."""
            run = Run(1, "digits", "slot 1.0", 1, "all_waiting", 0.0, 0.02, 1.0, device_s=0.01, sure=1)
            while not self._is_over.wait(0.1):
                events.emit(BatchFinished.of(run, Report([], Timing(), 1, 1), 0.02, "complete", 0.011))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body, media = metrics.render()
                self.send_response(200)
                self.send_header("content-type", media)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._is_over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._threads = [threading.Thread(target=each) for each in (more, self._server.serve_forever)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()


class Scraper:
    """A Prometheus of its own, with the files that are shipped and a shorter interval."""

    def __init__(self, folder: Path, *ports: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = shipped("prometheus.yml", ports[0])
        config = config.replace(f'"localhost:{ports[0]}"', ", ".join(f'"localhost:{port}"' for port in ports))
        (folder / "prometheus.yml").write_text(config.replace("interval: 5s", "interval: 500ms").replace("15s", "1s"))
        (folder / "alerts.yml").write_text(shipped("alerts.yml"))
        self._command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]

    def __enter__(self) -> Scraper:
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        self._process = subprocess.Popen([*self._command, listen], stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, expression: str) -> list[Any]:
        """What it finds now; nothing while it is not up."""
        try:
            url = f"http://127.0.0.1:{self.port}/api/v1/query"
            answer = httpx.get(url, params={"query": expression}, trust_env=False)
        except httpx.TransportError:
            return []
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return []  # it is still starting
        found = answer.json()
        assert found["status"] == "success", (expression, found)
        result: list[Any] = found["data"]["result"]
        return result


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(MODEL)
    more = ("--history", str(folder / "kept"), "--traces", "http://127.0.0.1:9")
    with Serving(folder / "shop.py", "--workers", "1", *more) as serving:
        yield serving


def test_prometheus_scrapes_a_server_and_every_panel_shows_something(serving: Serving, tmp_path: Path) -> None:
    is_over = threading.Event()

    def send() -> None:
        number = 0
        while not is_over.wait(0.02):
            number += (
                1  # each key twice; now and then one that no time is left for, and one that there is no answer for
            )
            serving.http.post("/shop", json={"id": f"k{number // 2}", "s": 0.3 if number % 40 == 0 else 0.002})
            if number % 10 == 0:
                serving.http.post("/strict", json={}, headers={"Timebound-Timeout-Ms": "5"})
                with socket.create_connection(("127.0.0.1", serving.port)) as stranger:
                    stranger.sendall(b"this is no HTTP\r\n\r\n")
                    stranger.recv(1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with Elsewhere() as elsewhere, Scraper(tmp_path, serving.port, elsewhere.port) as scraper:
            eventually(lambda: len(scraper.ask('up{job="shop"} == 1')) == 2, "a scrape of both")
            for title in (
                "Refused, by reason",
                "Less than full, by reason",
                "Clients stopped before they asked a model",
            ):
                (asked,) = (panel["targets"][0]["expr"] for panel in dashboard()["panels"] if panel["title"] == title)
                asked = f"({asked.replace('$job', 'shop').replace('$__rate_interval', '10s')}) > 0"
                eventually(partial(scraper.ask, asked), f"{title}: more than nothing")
            for panel in dashboard()["panels"]:
                for target in panel["targets"]:
                    asked = target["expr"].replace("$job", "shop").replace("$__rate_interval", "10s")
                    eventually(partial(scraper.ask, asked), f"{panel['title']}: {asked}")
            for asked in expressions_of_alerts():
                scraper.ask(asked)
            assert not scraper.ask('ALERTS{alertname="TimeboundNoWorker"}')
    finally:
        is_over.set()
        sender.join()


def test_promtool_finds_nothing_to_say_about_the_metrics(serving: Serving) -> None:
    serving.http.post("/shop", json={"id": "one"})
    text = serving.http.get("/metrics").text
    said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_open_metrics_names_requests(serving: Serving) -> None:
    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    serving.http.post("/shop", json={"id": "two"}, headers={"X-Request-Id": "seen-here", **traced})
    answer = serving.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert '# {request_id="seen-here",trace_id="0af7651916cd43dd8448eb211c80319c"}' in answer.text
    assert answer.text.endswith("# EOF\n")
