"""A bench run as one HTML file with plots that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from timebound.lab.chart import SHARES, Axis, Line, chart, limit, linear, logarithmic, table, whole_page
from timebound.lab.results import rows


def page(document: Mapping[str, Any]) -> str:
    """The HTML for a document of `results.document`."""
    levels = document["levels"]
    parts = [
        f"<p>{escape(document['path'])}; Timebound {escape(document['timebound'])}. Latencies count from the moment a "
        "request should have been sent. Goodput is the share of all requests that the model answered, rightly, within "
        "the deadline.</p>",
        table(rows(levels)),
        *([_sweep(levels)] if len(levels) > 1 else []),
        *map(_level, levels),
    ]
    return whole_page(f"timebound bench {document['target']}", parts)


def _sweep(levels: Sequence[Mapping[str, Any]]) -> str:
    """Goodput and latency against the load."""
    loads = [level["at"] for level in levels]
    unit = "requests/s offered" if levels[0]["is_open_loop"] else "clients"
    x = linear(unit, loads)
    goodput = [
        Line("goodput", [(level["at"], level["figures"]["goodput"]) for level in levels]),
        Line("in time", [(level["at"], level["figures"]["in_time"]) for level in levels], is_dashed=True),
    ]
    latencies = [
        Line(name, [(level["at"], level["figures"][figure]) for level in levels])
        for name, figure in (("p50", "p50_ms"), ("p99", "p99_ms"))
    ]
    latencies.append(limit("deadline", levels[0]["plan"]["deadline_s"] * 1000, x))
    y = logarithmic("ms", [value for line in latencies for _, value in line.points])
    return (
        "<h2>Against the load</h2>"
        + chart("Goodput", x, SHARES, goodput)
        + chart("Latency against the load", x, y, latencies)
    )


def _level(level: Mapping[str, Any]) -> str:
    notes = "".join(f'<p class="warning">{escape(text)}</p>' for text in level["warnings"])
    heading = f"<h2>{escape(level['load'])}</h2>{notes}"
    timeline = [row for row in level["timeline"] if row["requests"]]
    if not timeline or not level["percentiles"]:
        return heading + "<p>Nothing was answered.</p>"
    return heading + _over_time(level, timeline) + _rates(level) + _users(level) + _percentiles(level["percentiles"])


def _rates(level: Mapping[str, Any]) -> str:
    """Requests that came up and answers that came, each second."""
    named = (("came up", "offered_rps"), ("answered", "answered_rps"))
    lines = [Line(name, [(row["at_s"], row[rate]) for row in level["timeline"]]) for name, rate in named]
    return _against_time("Requests per second over time", "requests/s", lines)


def _users(level: Mapping[str, Any]) -> str:
    """How many wait for an answer; of a closed loop also how many users there are."""
    timeline = level["timeline"]
    lines = [Line("waiting", [(row["at_s"], row["under_way"]) for row in timeline])]
    if not level["is_open_loop"]:
        lines.append(Line("all", [(row["at_s"], level["at"]) for row in timeline], is_dashed=True))
    return _against_time("Users over time", "users", lines)


def _against_time(title: str, unit: str, lines: Sequence[Line]) -> str:
    x = linear("seconds since the start", [at for at, _ in lines[0].points])
    return chart(title, x, linear(unit, [value for line in lines for _, value in line.points]), lines)


def _over_time(level: Mapping[str, Any], timeline: Sequence[Mapping[str, float]]) -> str:
    times = [row["at_s"] for row in timeline]
    x = linear("seconds since the start, by the time requests came up", times)
    lines = [
        Line(name, [(row["at_s"], row[figure]) for row in timeline if row["max_ms"]])
        for name, figure in (("p50", "p50_ms"), ("p99", "p99_ms"), ("max", "max_ms"))
    ]
    deadline = level["plan"]["deadline_s"] * 1000
    highest = max(row["max_ms"] for row in timeline)
    if deadline <= 3 * highest:  # a limit far above everything would only flatten the lines
        lines.append(limit("deadline", deadline, x))
    y = linear("ms", [value for line in lines for _, value in line.points])
    return chart("Latency over time", x, y, lines)


def _percentiles(curve: Sequence[Sequence[float]]) -> str:
    """Latency by percentile; each step to the right is ten times rarer."""
    points = [(1 / (1 - share), value) for share, value in curve]
    high = max(10.0, points[-1][0])
    marks = [(1.0, "0"), (2.0, "50"), (10.0, "90"), (100.0, "99"), (1e3, "99.9"), (1e4, "99.99"), (1e5, "99.999")]
    log = logarithmic("percentile", [1.0, high])
    x = Axis("percentile", 1.0, high, [mark for mark in marks if mark[0] <= high], log.scale)
    return chart(
        "Latency by percentile", x, linear("ms", [value for _, value in points]), [Line("all answers", points)]
    )
