"""What is asked of a history: which files are opened for it, by which index rows are found, and what is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.observe.damage import ALL_PAGES, TABLE_LEAVES, damage
from tests.observe.test_journal import NOON, World, outcome

from timebound.cli import main
from timebound.errors import BadInput
from timebound.observe.database import read_only
from timebound.observe.filter import filter_of
from timebound.observe.history import History, question
from timebound.observe.ledger import Ledger, files

HOUR = 3600
_opened: list[list[str]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect":
        for each in _opened:
            each.append(str(arguments[0]))


sys.addaudithook(_note)


@contextmanager
def opened() -> Iterator[list[str]]:
    """The names of the files of outcomes that are opened meanwhile."""
    seen: list[str] = []
    _opened.append(seen)
    yield seen
    _opened.remove(seen)
    seen[:] = [name.rpartition("/")[2].partition("-")[0] for name in seen if "/20" in name]


@pytest.fixture
def days(tmp_path: Path) -> History:
    """A request an hour, for two days."""
    for hour in range(48):
        world = World(tmp_path, most_s=1e6)
        world.wall = NOON + hour * HOUR
        with world.writing():
            world.answer(f"r{hour}", {"label": "a", "confidence": hour / 48}, body=b'{"user": "u"}')
    return History(tmp_path)


def between(first: int, last: int, **more: str) -> dict[str, str]:
    return {"since": str(NOON + first * HOUR), "until": str(NOON + last * HOUR), **more}


@pytest.mark.parametrize("order", ["newest", "unsure"])
def test_hours_that_are_not_asked_for_are_not_opened(days: History, order: str) -> None:
    with opened() as names:
        rows = days.rows(filter_of(between(20, 23)), most=100, order=order)
    assert sorted(row["request"] for row in rows) == ["r20", "r21", "r22"]
    assert len(names) <= 6, "what began two hours before its answer was written is looked for too"
    with opened() as names:
        assert days.counts(filter_of(between(20, 23)), "label") == [("a", 3)]
        assert len(list(days.export(filter_of(between(20, 23)), "ndjson"))) == 3
    assert len(names) <= 12


def test_a_request_that_took_an_hour_is_found_by_the_time_it_came(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wall = NOON
    world.now = 100.0 + HOUR  # since the requests of `answer` came
    with world.writing():
        world.answer("long")
    assert [row["request"] for row in world.rows(until=str(NOON - HOUR + 1))] == ["long"]


def test_dates_are_times_too(days: History) -> None:
    first = days.rows(filter_of({"since": "2026-11-18", "until": "2026-11-19"}), most=100)
    others = days.rows(filter_of({"since": "2026-11-19T00:00"}), most=100)
    assert max(row["at"] for row in first) < 1_795_046_400 <= min(row["at"] for row in others)
    assert len(first) + len(others) == 48


@pytest.mark.parametrize(
    ("asked", "order", "index"),
    [
        ({"key": "key-r1"}, "newest", "by_key"),
        ({"key": "key-r1"}, "unsure", "by_key"),
        ({"request": "r1"}, "newest", "by_request"),
        ({"user": "u"}, "newest", "by_user"),
        ({"verdict": "wrong"}, "newest", "by_at"),
        (between(0, 2), "newest", "by_at"),
        ({"model": "m"}, "newest", "by_at"),
        (between(0, 2), "unsure", "by_confidence"),
        (between(0, 2, model="m", below="0.5"), "unsure", "by_confidence"),
        ({}, "unsure", "by_confidence"),
    ],
)
def test_rows_are_found_by_an_index(
    days: History, tmp_path: Path, asked: dict[str, str], order: str, index: str
) -> None:
    world = World(tmp_path)
    with world.writing():
        world.journal.say(("m", "key-r1", "wrong", "", NOON, ""))
    connection = read_only(files(tmp_path)[0])
    statement, values = question(connection, filter_of(asked), order, 100)
    steps = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    connection.close()
    assert any(f"outcomes USING INDEX {index}" in step for step in steps), steps
    assert "SCAN outcomes" not in steps


def test_what_is_listed_goes_on_where_the_last_page_ended(days: History) -> None:
    for order in ("newest", "unsure"):
        pages = [days.rows(filter_of({}), most=20, skip=skip, order=order) for skip in (0, 20, 40)]
        whole = [row["request"] for page in pages for row in page]
        assert whole == [row["request"] for row in days.rows(filter_of({}), most=100, order=order)]
        assert len(whole) == 48


def test_the_newest_of_two_servers_that_share_a_folder_come_first(tmp_path: Path) -> None:
    for seconds in (60, 0):  # each has a file of its own, and the last file has not the newest
        world = World(tmp_path)
        world.wall = NOON + seconds
        with world.writing():
            world.answer(f"after {seconds} s")
    assert len(files(tmp_path)) == 2
    assert [row["request"] for row in world.history.rows(filter_of({}), most=1)] == ["after 60 s"]


def test_counts_of_verdicts_heed_every_filter(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        for number in range(6):
            world.answer(str(number), {"label": "ab"[number % 2], "confidence": number / 10})
            world.journal.say(("m", f"key-{number}", "right" if number < 4 else "wrong", "", NOON, ""))
    history = world.history
    assert history.counts(filter_of({}), "verdict") == [("right", 4), ("wrong", 2)]
    assert history.counts(filter_of({"label": "a", "below": "0.3"}), "verdict") == [("right", 2)]
    assert history.counts(filter_of({"since": str(NOON + 1)}), "verdict") == []


def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="newest or unsure"):
        World(tmp_path).history.rows(filter_of({}), most=1, order="oldest")
    with pytest.raises(BadInput, match="right or wrong"):
        filter_of({"verdict": "maybe"})


def test_a_file_whose_name_is_nearly_that_of_an_hour_costs_no_outcome(tmp_path: Path) -> None:
    for name in ("99999999T000000-1", "20260231T000000-1", "20261118T990000-1"):
        (tmp_path / f"{name}.sqlite").write_bytes(b"x" * 100)
    world = World(tmp_path)
    with world.writing():
        world.answer("one")
    assert (world.journal.written, world.journal.dropped) == (1, 0)
    assert [row["request"] for row in world.rows()] == ["one"]
    assert len(list(tmp_path.glob("*-1.sqlite"))) == 3


def test_counts_by_minute_are_summed_over_longer_steps_and_found_by_time_and_model(tmp_path: Path) -> None:
    for minute in range(0, 180, 20):
        world = World(tmp_path, most_s=1e6)
        world.wall = NOON + minute * 60
        with world.writing():
            world.answer(f"m{minute}")
            world.answer(f"shy{minute}", model="shy")
    history = History(tmp_path)
    every = history.minutes(filter_of({}), NOON, NOON + 10_800, 60)
    assert [row["count"] for row in every] == [2] * 9
    assert [row["at"] % 60 for row in every] == [0] * 9
    hours = history.minutes(filter_of({"model": "m"}), NOON, NOON + 10_800, 3600)
    assert [row["at"] % 3600 for row in hours] == [0] * len(hours)
    assert sum(row["count"] for row in hours) == sum(row["full"] for row in hours) == 9
    part = history.minutes(filter_of({}), NOON + 3560, NOON + 7160, 60)
    assert sum(row["count"] for row in part) == 6
    with pytest.raises(BadInput, match="by minute"):
        history.minutes(filter_of({"label": "a"}), NOON, NOON + 60, 60)


def test_the_command_tells_requests_by_minute_hour_and_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for hour in (0, 1, 30):
        world = World(tmp_path, most_s=1e6)
        world.wall = NOON + hour * HOUR
        with world.writing():
            world.answer(f"r{hour}")
            world.answer(f"s{hour}", model="shy")

    def told(*more: str) -> list[list[str]]:
        period = ("--only", "since=2026-11-18", "--only", "until=2026-11-21")
        assert main(["history", "stats", str(tmp_path), *period, *more]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    assert [row[:2] for row in told("--by", "day")] == [["2026-11-18", "4"], ["2026-11-19", "2"]]
    assert [row[:3] for row in told("--by", "hour", "--only", "model=m")] == [
        ["2026-11-18", "11:00", "1"], ["2026-11-18", "12:00", "1"], ["2026-11-19", "17:00", "1"],
    ]  # fmt: skip
    assert len(told("--by", "minute")) == 3
    assert main(["history", "stats", str(tmp_path), "--by", "hour", "--only", "label=a"]) == 2
    assert "by hour" in capsys.readouterr().err


def test_the_command_names_what_it_counts_and_says_when_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "stats", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"there is no request in {tmp_path}\n"
    world = World(tmp_path)
    with world.writing():
        world.answer("one")
    assert main(["history", "stats", str(tmp_path), "--by", "quality"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [["requests", "share", "quality"], ["1", "100.0%", "full"]]
    assert main(["history", "stats", str(tmp_path), "--only", "model=other"]) == 0
    assert capsys.readouterr().err == f"there is no request in {tmp_path} that fits --only\n"


def test_counts_and_words_that_somebody_took_away_are_begun_anew_and_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    for verdict in ("right", "wrong"):
        for file in list(tmp_path.iterdir()):
            file.unlink()
        ledger.write([outcome("one", b"")], [(NOON // 60, "m", "1", "full", "computed", "", 1, 1, 2.0)], NOON)
        ledger.write_feedback([("x", "x", verdict, "", NOON, "")])
    ledger.close()
    history = History(tmp_path)
    assert history.counts(filter_of({}), "verdict") == [("wrong", 1)]
    assert [each["count"] for each in history.minutes(filter_of({}), NOON - 60, NOON + 60, 60)] == [1]


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As who may read a folder and not write into it."""
    is_root = os.geteuid() == 0
    folder.chmod(0o555)
    if is_root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_who_may_read_the_folder_and_not_write_into_it_finds_what_there_is() -> None:
    with TemporaryDirectory() as name:  # that of the tests is closed to others
        folder = Path(name)
        world = World(folder)
        with world.writing():
            world.answer("one")
            world.journal.say(("m", "key-one", "wrong", "b", NOON, ""))
        assert not list(folder.glob("*-wal")), "nobody writes it"
        with without_rights(folder):
            (row,) = world.rows()
            assert (row["request"], row["verdict"]) == ("one", "wrong")
            assert len(world.history.minutes(filter_of({}), NOON - 60, NOON + 60, 60)) == 1


@pytest.mark.parametrize("kinds", [TABLE_LEAVES, ALL_PAGES], ids=["rows", "all"])
def test_a_damaged_file_is_left_out_and_said_to_be_and_the_others_are_read(
    tmp_path: Path, kinds: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for hour in (0, 1):
        world = World(tmp_path, most_s=1e6)
        world.wall = NOON + hour * HOUR
        with world.writing():
            for number in range(60):
                world.answer(f"{hour}-{number}")
    bad, _ = files(tmp_path)
    damage(bad, kinds)
    history = History(tmp_path)
    assert {row["request"][0] for row in history.rows(filter_of({}), most=500)} == {"1"}
    assert history.counts(filter_of({}), "label") == [("a", 60)]
    assert len(list(history.export(filter_of({}), "ndjson"))) == 60
    assert history.body(f"{bad.stem}/1", "input") is None
    assert history.damaged(filter_of({})) == [bad.name]
    assert history.damaged(filter_of({"since": str(NOON + 5 * HOUR)})) == []
    (said,) = [record.getMessage() for record in caplog.records if "is damaged" in record.getMessage()]
    assert bad.name in said
