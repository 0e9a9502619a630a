"""A bench run as one HTML file with plots that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from timebound.lab.chart import Axis, Line, chart, linear, logarithmic
from timebound.lab.results import COLUMNS

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #d9dee5; --soft: #5d6b7c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --paper: #14181f; --faint: #2c3541; --soft: #93a1b3; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; margin: .5rem 0; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .title { font-weight: 600; font-size: 13px; } svg .tick { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--faint); } .warning { border-left: 4px solid #e07b00; padding-left: .8rem; }
p, dl { color: var(--soft); }
"""


def page(document: Mapping[str, Any]) -> str:
    """The HTML for a document of `results.document`."""
    levels = document["levels"]
    title = f"timebound bench {document['target']}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p>{escape(document['path'])}; Timebound {escape(document['timebound'])}. "
        "Latencies count from the moment a request should have been sent. Goodput is the share of all requests that "
        "the model answered, rightly, within the deadline.</p>",
        _table(levels),
    ]
    if len(levels) > 1:
        parts.append(_sweep(levels))
    for level in levels:
        parts.append(_level(level))
    return "\n".join([*parts, "</body></html>\n"])


def _table(levels: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("load", *(heading for _, heading, _, _ in COLUMNS)))
    rows = "".join(
        f"<tr><td>{escape(level['load'])}</td>"
        + "".join(f"<td>{level['figures'][name]:,.{digits}f}</td>" for name, _, digits, _ in COLUMNS)
        + "</tr>"
        for level in levels
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _sweep(levels: Sequence[Mapping[str, Any]]) -> str:
    """Goodput and latency against the load."""
    loads = [level["at"] for level in levels]
    unit = "requests/s offered" if levels[0]["is_open_loop"] else "clients"
    x = linear(unit, loads)
    shares = Axis("share of all requests", 0.0, 1.0, [(n / 5, f"{n / 5:g}") for n in range(6)])
    goodput = [
        Line("goodput", [(level["at"], level["figures"]["goodput"]) for level in levels]),
        Line("in time", [(level["at"], level["figures"]["in_time"]) for level in levels], is_dashed=True),
    ]
    latencies = [
        Line(name, [(level["at"], level["figures"][figure]) for level in levels])
        for name, figure in (("p50", "p50_ms"), ("p99", "p99_ms"))
    ]
    deadline = levels[0]["plan"]["deadline_s"] * 1000
    latencies.append(Line("deadline", [(0.0, deadline), (x.high, deadline)], is_dashed=True))
    y = logarithmic("ms", [value for line in latencies for _, value in line.points])
    return (
        "<h2>Against the load</h2>"
        + chart("Goodput", x, shares, goodput)
        + chart("Latency against the load", x, y, latencies)
    )


def _level(level: Mapping[str, Any]) -> str:
    notes = "".join(f'<p class="warning">{escape(text)}</p>' for text in level["warnings"])
    heading = f"<h2>{escape(level['load'])}</h2>{notes}"
    timeline = [row for row in level["timeline"] if row["requests"]]
    if not timeline or not level["percentiles"]:
        return heading + "<p>Nothing was answered.</p>"
    return heading + _over_time(level, timeline) + _percentiles(level["percentiles"])


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
        lines.append(Line("deadline", [(0.0, deadline), (x.high, deadline)], is_dashed=True))
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
