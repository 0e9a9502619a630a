"""The dashboard and the alerts that are shipped ask for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.observe.questions import dashboard, expressions_of_alerts

from timebound.events import Events
from timebound.machine.nvml import Card
from timebound.observe.drift import Drift
from timebound.observe.gpus import GpuNumbers
from timebound.observe.journal import Journal
from timebound.observe.metrics import Metrics
from timebound.observe.otlp import Collector
from timebound.observe.signals import Look, Signals
from timebound.observe.traces import Traces

_GATEWAYS_OWN = {"workers_up", "slots_up", "store_up", "requests_queued"}


class NoCards:
    """A machine whose GPUs nobody could read yet."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def read(self) -> list[Card]:
        return []


def exported(folder: Path) -> set[str]:
    """Every name that a server's metrics can have."""
    events = Events()
    signals = Signals(events, lambda now: Look(0.0, 0.0, 1), is_told=False)
    gauges = signals.gauges() | {name: (name, lambda: 0.0) for name in _GATEWAYS_OWN}
    names: set[str] = set()
    drift = Drift(events, models={}, wall=lambda: 0.0)
    metrics = Metrics(events, gauges)
    journal = Journal(events, folder, most_bytes=1, most_s=1.0, models={}, now=lambda: 0.0, wall=lambda: 0.0)
    metrics.counts |= journal.counts()
    metrics.counts |= Traces(
        events, Collector("http://127.0.0.1:9", "", "shop"), models={}, now=lambda: 0.0, wall=lambda: 0.0
    ).counts()
    for family in (*metrics.collect(), *drift.collect(), *GpuNumbers(NoCards()).collect()):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + end for end in ends}
    return names


def test_every_panel_and_every_alert_asks_for_metrics_that_are_exported(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    named = set(re.findall(r"timebound_\w+", " ".join([*asked, *expressions_of_alerts()])))
    assert len(named) >= 20
    assert named <= exported(tmp_path)


def test_no_panel_shows_something_where_there_is_nothing_to_show() -> None:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    assert not [one for one in asked if "vector(" in one]


def test_there_is_a_panel_and_an_alert_for_what_is_dropped_and_a_panel_for_drift_gpus_and_who_was_turned_away() -> None:
    asked = " ".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    alerts = " ".join(expressions_of_alerts())
    dropped = ("timebound_history_dropped_total", "timebound_traces_dropped_total")
    seen = ("timebound_drifting", "timebound_drift_psi", "timebound_gpu_busy_ratio", "timebound_turned_away_total")
    assert [name for name in (*seen, *dropped) if name not in asked] == []
    assert [name for name in dropped if name not in alerts] == []


def test_every_panel_has_a_title_a_unit_and_words_for_its_lines() -> None:
    for panel in dashboard()["panels"]:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
    assert json.dumps(dashboard()).count('"uid": "${source}"') == len(dashboard()["panels"])
