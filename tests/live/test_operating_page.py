"""The table of metrics on the page for operators has every metric that is exported, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.live.serving import MODELS, Serving

from timebound.events import Events, HandlersMeasured
from timebound.machine.nvml import Card
from timebound.observe.gpus import GpuNumbers
from timebound.observe.handlers import HandlerNumbers
from timebound.types import Measured

pytestmark = pytest.mark.live

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
ROWS = {
    name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning)
    for name, kind, labels, meaning in re.findall(r"^\| `(timebound_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", PAGE, re.M)
}


class NoCards:
    """A machine whose GPUs nobody could read yet."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def read(self) -> list[Card]:
        return []


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Everything that /metrics can show: of a server with all that is optional, of GPUs and of handlers."""
    events, registry = Events(), CollectorRegistry()
    handlers = HandlerNumbers(events)
    told = [Measured("m", "seen", "ms", kind, 1, 1.0, 1.0) for kind in ("counter", "value")]
    events.emit(HandlersMeasured(told))
    for collector in (GpuNumbers(NoCards()), handlers):
        registry.register(collector)
    history = tmp_path_factory.mktemp("history")
    more = ("--history", history, "--grpc-port", "0", "--traces", "http://127.0.0.1:9")
    with Serving(MODELS / "voters.py", "--workers", "1", *more) as serving:
        model = serving.http.get("/v1/models").json()["models"][0]
        serving.http.post(f"/predictions/{model['name']}", json=model["example"])
        return str(serving.http.get("/metrics").text) + generate_latest(registry).decode()


def test_the_table_has_every_metric_with_its_kind_and_meaning(exported: str) -> None:
    meanings = dict(re.findall(r"^# HELP (timebound_\w+) (.*)$", exported, re.M))
    kinds = dict(re.findall(r"^# TYPE (timebound_\w+) (.*)$", exported, re.M))
    assert {name: (kind, meaning) for name, (kind, _, meaning) in ROWS.items()} == {
        name: (kinds[name], meaning) for name, meaning in meanings.items()
    }


def test_the_table_has_the_labels_of_each_metric(exported: str) -> None:
    seen = 0
    for line in exported.splitlines():
        found = re.match(r"(timebound_\w+?)(?:_bucket|_sum|_count)?\{(.*)\} ", line)
        if found:
            name = next(each for each in (line.partition("{")[0], found[1]) if each in ROWS)
            assert set(re.findall(r'(\w+)="', found[2])) - {"le"} == ROWS[name][1], name
            seen += 1
    assert seen > 50
