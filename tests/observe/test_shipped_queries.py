"""The dashboard and the alerts that are shipped ask for metrics that there are."""

from __future__ import annotations

import json
import re

from tests.observe.questions import dashboard, expressions_of_alerts

from timebound.events import Events
from timebound.observe.drift import Drift
from timebound.observe.metrics import Metrics
from timebound.observe.signals import Look, Signals

_GATEWAYS_OWN = {"workers_up", "slots_up", "store_up", "requests_queued"}


def exported() -> set[str]:
    """Every name that a server's metrics can have."""
    events = Events()
    signals = Signals(events, lambda now: Look(0.0, 0.0, 1), is_told=False)
    gauges = signals.gauges() | {name: (name, lambda: 0.0) for name in _GATEWAYS_OWN}
    names: set[str] = set()
    drift = Drift(events, models={}, wall=lambda: 0.0)
    for family in (*Metrics(events, gauges).collect(), *drift.collect()):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + end for end in ends}
    return names


def test_every_panel_and_every_alert_asks_for_metrics_that_are_exported() -> None:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    named = set(re.findall(r"timebound_\w+", " ".join([*asked, *expressions_of_alerts()])))
    assert len(named) >= 20
    assert named <= exported()


def test_every_panel_has_a_title_a_unit_and_words_for_its_lines() -> None:
    for panel in dashboard()["panels"]:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
    assert json.dumps(dashboard()).count('"uid": "${source}"') == len(dashboard()["panels"])
