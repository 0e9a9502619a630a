from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from timebound.errors import SetupError
from timebound.lab import results
from timebound.lab.bench import Level, Plan
from timebound.lab.chart import Line, chart, linear, logarithmic, nice_step
from timebound.lab.load.attempts import Attempt, End, Question
from timebound.lab.load.tally import Tally
from timebound.lab.page import page

CLIENT = {
    "client_cpu": 0.1, "client_loop_lag_p99_ms": 0.2, "client_loop_lag_max_ms": 1.0, "client_send_lag_p99_ms": 0.1,
    "client_send_lag_max_ms": 1.0, "unfinished": 0, "connections": 4, "stale_connections": 0, "held_back": 0,
}  # fmt: skip


def level(rate: float, latency: float = 0.1, end: End = End.ANSWERED, warnings: tuple[str, ...] = ()) -> Level:
    tally = Tally(1.0, 0.0, 10.0)
    for number in range(100):
        at = number / 10
        tally.add(Question(at, attempts=[Attempt(at, at, at, latency, end, 200, "full", "computed", why="gone")]))
    return Level(Plan(rate=rate, deadline_s=1.0), {**tally.figures(), **CLIENT}, tally.details(), list(warnings))


def document(*levels: Level) -> dict[str, Any]:
    return results.document("http://h", "/p", levels, "1.0")


def test_a_document_is_json_that_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document(level(20.0))))
    assert results.read_document(file)["levels"][0]["figures"]["requests"] == 100


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "levels": [{}]}', '{"format": 99, "levels": []}'])
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(SetupError, match="is no result of"):
        results.read_document(file)


def test_the_table_has_a_line_for_each_level_and_says_why_requests_failed() -> None:
    text = results.table(document(level(20.0), level(40.0, end=End.LOST)))
    lines = text.splitlines()
    assert lines[1].startswith("20/s poisson")
    assert lines[2].split()[-3:] == ["-", "100", "0"]
    assert "connection lost 100: gone 100" in text


def test_compared_levels_of_one_load_are_side_by_side() -> None:
    old, new = document(level(20.0), level(40.0)), document(level(20.0, latency=0.2), level(80.0))
    rows = results.compare(old, new).splitlines()
    (p50,) = [row.split() for row in rows if row.startswith("  p50 ")]
    assert p50[-1] == "worse"
    assert float(p50[-2].rstrip("%")) == pytest.approx(100.0, abs=0.2)
    assert "80/s poisson: not in the old results" in rows
    assert "40/s poisson: not in the new results" in rows


def test_a_change_of_less_than_a_fiftieth_is_the_same_and_from_zero_it_is_plain() -> None:
    old, new = document(level(20.0)), document(level(20.0, latency=0.101))
    assert [row.split()[-1] for row in results.compare(old, new).splitlines() if row.startswith("  p50")] == ["same"]
    broken = document(level(20.0, end=End.LOST))
    (failed,) = [row.split() for row in results.compare(old, broken).splitlines() if row.startswith("  failed")]
    assert failed == ["failed", "0", "100", "+100", "worse"]


def svgs(html: str) -> list[ET.Element]:
    parts = html.split("<svg")[1:]
    return [ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in parts]


def test_the_page_stands_alone_and_its_plots_are_well_formed() -> None:
    html = page(document(level(20.0), level(40.0, latency=0.5, warnings=("beware <of> this",))))
    assert len(svgs(html)) == 2 + 2 * 4
    assert html.count("Requests per second over time") == html.count(">Users over time<") * 2 == 4
    assert "http://" not in html.replace("http://h", "")
    assert "<script" not in html
    assert "beware &lt;of&gt; this" in html


def test_a_level_without_answers_is_told_without_plots() -> None:
    html = page(document(level(20.0, end=End.LOST)))
    assert "Nothing was answered" in html


def test_axes_end_at_round_numbers_and_points_stay_inside() -> None:
    assert [nice_step(span) for span in (1.0, 7.0, 23.0, 0.03)] == pytest.approx([0.2, 2.0, 5.0, 0.01])
    assert linear("x", [0.0, 97.0]).high == 100.0
    log = logarithmic("y", [3.0, 450.0])
    assert (log.low, log.high) == (1.0, 1000.0)
    drawn = chart("t", linear("x", [0.0, 10.0]), log, [Line("a", [(0.0, 3.0), (10.0, 450.0)])])
    points = next(node.attrib["points"] for node in svgs(drawn)[0] if node.tag == "polyline")
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert all(0 <= x <= 720 and 0 <= y <= 300 for x, y in places)
    assert places[0][1] > places[1][1]  # more is higher up


def test_results_of_a_release_that_measured_less_are_compared_in_what_they_have() -> None:
    old = document(level(20.0))
    del old["levels"][0]["figures"]["min_ms"]
    assert "min ms" not in results.compare(old, document(level(20.0)))
    assert "min ms" in results.compare(document(level(20.0)), document(level(20.0)))
