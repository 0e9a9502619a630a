"""What examples/sentiment draws, whatever one client wrote; and how its scripts say that something is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentiment"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(EXAMPLE)
    import report  # type: ignore[import-not-found]  # found beside it, as when it is run

    yield report
    for name in ("report", "posts"):
        sys.modules.pop(name)


def kept(report: ModuleType, *times: str) -> Any:
    return [report.Kept("positive", "mira", time, ["tram"]) for time in times]


def test_wrong_dates_do_not_stretch_the_picture(report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("0001-01-01", "9999-12-31T23:59", "0001-01-01T00:00+14:00")
    answers = kept(report, *wrong, "2026-03-02T08:15", "2026-03-02T10:01")
    rows = report.over_time(answers, "tram", report.HOUR)
    assert [counts for _, counts in rows] == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert capsys.readouterr().out == "posts outside the 60 days that have most are left out: 2\n"


def test_nothing_is_left_out_of_sixty_days(report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows = report.over_time(kept(report, "2026-03-01T23:59", "2026-04-29T00:01"), "tram", report.DAY)
    assert (len(rows), capsys.readouterr().out) == (60, "")


def test_times_are_counted_in_utc(report: ModuleType) -> None:
    for time in ("2026-03-02T08:15+02:00", "2026-03-02T06:15Z", "2026-03-02T06:15"):
        ((when, _),) = report.over_time(kept(report, time), "tram", report.HOUR)
        assert when == datetime(2026, 3, 2, 6)


def test_any_name_can_be_drawn(report: ModuleType, tmp_path: Path) -> None:
    names = ("$\\\\bad{ $ mira", "x" * 200 + "1", "x" * 200 + "2", "two\nlines", "$x_1$")
    report.draw_users([(name, [1, 2, 3]) for name in names], tmp_path / "users.png")
    rows = report.over_time(kept(report, "2026-03-02"), "tram", report.DAY)
    report.draw_topic(rows, names[0], report.DAY, tmp_path / "topic.png")
    for file in ("users.png", "topic.png"):
        with Image.open(tmp_path / file) as picture:
            assert picture.format == "PNG"


NOBODY = "127.0.0.1:9"
"""The discard port, where nothing listens."""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["report.py", "--store", f"redis://:secret@{NOBODY}"], f"no Redis answers at redis://{NOBODY}/0: "),
        (["report.py", "--store", "memory"], "--store is no address of a Redis; give one such as redis://"),
        (["report.py", "--store", "redis://127.0.0.1/x"], "the store's database is 'x'; give a number"),
        (["feed.py", "--url", f"http://{NOBODY}"], f"no server answers at http://{NOBODY}: "),
        (["replay.py", "--url", f"http://{NOBODY}"], f"no server answers at http://{NOBODY}: "),
        (["feed.py", "--url", "nonsense"], "nonsense is no address of a server; give one such as"),
    ],
)
def test_script_says_what_is_missing(command: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["feed.py", "replay.py", "report.py"])
def test_help_names_the_default_address(script: str) -> None:
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=True
    )
    assert "127.0.0.1:" in done.stdout
