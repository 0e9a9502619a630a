"""A real Prometheus scrapes a server and is asked what the dashboard asks; promtool reads the metrics."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import Serving, eventually
from tests.observe.questions import dashboard, expressions_of_alerts, shipped

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="comes with the Debian package prometheus"),
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
"""


class Scraper:
    """A Prometheus of its own, with the files that are shipped and a shorter interval."""

    def __init__(self, folder: Path, port: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = shipped("prometheus.yml", port)
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
    with Serving(folder / "shop.py", "--workers", "1") as serving:
        yield serving


def test_prometheus_scrapes_a_server_and_every_panel_shows_something(serving: Serving, tmp_path: Path) -> None:
    is_over = threading.Event()

    def send() -> None:
        number = 0
        while not is_over.wait(0.02):
            number += 1  # each key twice; now and then one that no time is left for
            serving.http.post("/shop", json={"id": f"k{number // 2}", "s": 0.3 if number % 40 == 0 else 0.002})

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with Scraper(tmp_path, serving.port) as scraper:
            eventually(lambda: scraper.ask('up{job="shop"} == 1'), "a scrape")
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
    serving.http.post("/shop", json={"id": "two"}, headers={"X-Request-Id": "seen-here"})
    answer = serving.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert '# {request_id="seen-here"}' in answer.text
    assert answer.text.endswith("# EOF\n")
