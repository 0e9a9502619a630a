"""The history: what is written, what is kept out, what is dropped, and what is found again."""

from __future__ import annotations

import csv
import io
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet
from tests.observe.damage import ALL_PAGES, damage

from timebound.errors import BadInput, DeadlineMissed, SetupError
from timebound.events import Answered, Events, Refused
from timebound.observe.database import read_only
from timebound.observe.filter import filter_of
from timebound.observe.history import History
from timebound.observe.journal import Journal, check_folder
from timebound.observe.ledger import OUTCOMES, Ledger, files
from timebound.observe.told import Told
from timebound.reading.light import is_heavy_json
from timebound.types import ModelInfo, Outcome, Quality, Question, Result, Run

NOON = 1_795_000_000.0
KEEPS = ModelInfo(name="m", keep_inputs=True, redact=["email"], user_field="user")
TELLS = ModelInfo(name="tells", keep_inputs=True, has_redact=True, redact=["label"])
RUN = Run(7, "m", "slot 1.0", 2, "best_rate", 100.0, 0.012, 100.4)


class World:
    """A journal of two models: `m` keeps what is sent, `shy` does not."""

    def __init__(self, folder: Path, most_bytes: int = 100_000_000, most_s: float = 1000.0) -> None:
        self.events = Events()
        self.wall, self.now = NOON, 100.0
        self.journal = Journal(
            self.events,
            folder,
            most_bytes=most_bytes,
            most_s=most_s,
            models={"m": KEEPS, "shy": ModelInfo(name="shy"), "tells": TELLS},
            now=lambda: self.now,
            wall=lambda: self.wall,
            is_heavy=is_heavy_json,
        )
        self.history = History(folder)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.journal.start()
        yield
        self.journal.stop()

    def answer(self, name: str, answer: Any = None, *, model: str = "m", body: bytes = b"{}", **result: Any) -> None:
        question = Question(name, model, body, 100.0, 100.5, f"key-{name}")
        outcome = Outcome(msgspec.json.encode(answer or {"label": "a", "confidence": 0.9}))
        found = Result(outcome, **{"version": "1", "run": RUN, **result})
        self.events.emit(Answered(question, found, 200, 0.02))

    def rows(self, **asked: str) -> list[dict[str, Any]]:
        return self.history.rows(filter_of(asked), most=100)


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_served(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"no history can be written to .*file: it is a file; check --history$"):
        check_folder(tmp_path / "file")
    with pytest.raises(SetupError, match=r"no history can be written to /proc/history: .*; check --history$"):
        check_folder(Path("/proc/history"))


def test_a_history_that_is_still_broken_at_the_end_is_not_said_to_be_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path / "file")
    (tmp_path / "file").touch()
    with caplog.at_level("INFO", logger="timebound.history"), world.writing():
        world.answer("one")
    assert "cannot be written, and answers go on without it" in caplog.text
    assert "written again" not in caplog.text
    assert world.journal.dropped == 1


def test_what_became_of_each_request_is_found_by_any_of_its_fields(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("one")
        world.answer("two", {"label": "b", "confidence": 0.4}, quality=Quality.PARTIAL, reason="guard")
        world.events.emit(Refused("m", "three", "overloaded", 429, 0.003))
        given_up = DeadlineMissed("no answer in time")
        given_up.run = RUN
        world.events.emit(Refused("m", "four", "deadline_missed", 504, 0.5, error=given_up))
    (row,) = world.rows(code="deadline_missed")
    assert (row["request"], row["batch"], row["size"], row["predicted_ms"]) == ("four", 7, 2, 12.0)
    assert [row["request"] for row in world.rows(label="b")] == ["two"]
    (row,) = world.rows(quality="partial")
    assert (row["reason"], row["confidence"], row["batch"], row["predicted_ms"]) == ("guard", 0.4, 7, 12.0)
    assert [row["request"] for row in world.rows(code="overloaded")] == ["three"]
    assert [row["request"] for row in world.rows(below="0.5")] == ["two"]
    unsure = world.history.rows(filter_of({}), most=10, order="unsure")
    assert [row["request"] for row in unsure] == ["two", "one"]


def test_bodies_are_kept_for_models_that_say_so_and_without_what_is_to_be_left_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    body = b'{"user": "ann", "email": "ann@example.org", "inner": [{"email": "x", "n": 1}]}'
    with world.writing():
        world.answer("kept", {"label": "a", "email": "ann@example.org"}, body=body)
        world.answer("not", model="shy", body=body)
    (kept,) = world.rows(user="ann")
    assert world.history.body(kept["place"], "input") == (b'{"user":"ann","inner":[{"n":1}]}', "application/json")
    assert world.history.body(kept["place"], "answer") == (b'{"label":"a"}', "application/json")
    (shy,) = world.rows(model="shy")
    assert (shy["kept"], world.history.body(shy["place"], "input")) == (0, None)
    assert b"ann@example.org" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_what_is_to_be_left_out_is_in_no_label_and_in_no_members_answer_either(tmp_path: Path) -> None:
    world = World(tmp_path)
    votes = '[{"member":"small","answer":{"label":"b","email":"ann@example.org"}},{"member":"large","problem":"x"}]'
    with world.writing():
        world.answer("one", {"label": "a", "email": "ann@example.org"}, votes=votes)
        world.answer("two", {"label": "a"}, model="tells", votes=votes)
    (row,) = world.rows(request="one")
    assert row["label"] == "a"
    assert msgspec.json.decode(row["votes"]) == [
        {"member": "small", "answer": {"label": "b"}},
        {"member": "large", "problem": "x"},
    ]
    (row,) = world.rows(request="two")
    assert (row["label"], row["votes"]) == ("", ""), "its label is what it leaves out, and nobody says what may be kept"
    assert b"ann@example.org" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_what_is_no_json_is_not_kept_where_something_is_to_be_left_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("raw", body=b"\x89PNG of ann@example.org")
        world.answer("json", body=b'{"n": 1}')
    assert {row["request"]: row["kept"] for row in world.rows()} == {"raw": 0, "json": 1}


def test_bodies_that_take_long_to_read_are_not_looked_into_and_so_not_kept_where_something_is_to_be_left_out(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    heavy = Question("no", "m", b'{"user": "ann", "n": 1e-320}', 100.0, 100.5)
    with world.writing():
        world.answer("many", body=b'{"user": "ann", "email": "e", "n": [%b]}' % b",".join([b"1"] * 50_000))
        world.answer("tiny", body=b'{"user": "ann", "email": "e", "n": 1e-320}')
        world.answer("text", body=b'{"user": "ann", "email": "e", "text": "%b"}' % (b"x" * 100_000))
        world.events.emit(Refused("m", "no", "overloaded", 429, 0.1, question=heavy))
    found = {row["request"]: (row["user"], row["kept"]) for row in world.rows()}
    assert found == {"many": ("", 0), "tiny": ("", 0), "text": ("ann", 1), "no": ("", 0)}


@pytest.mark.parametrize("deep", [300, 700, 5_000])
def test_bodies_that_nest_deeply_cost_no_other_request_its_place(tmp_path: Path, deep: int) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("deep", body=b'{"n": %b%b}' % (b"[" * deep, b"]" * deep))
        world.answer("after")
    assert {row["request"] for row in world.rows()} == {"deep", "after"}


def test_an_outcome_that_cannot_be_told_is_counted_and_the_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_by(body: bytes, *others: object) -> Told:
        if b"odd" in body:
            raise ValueError("nobody thought of this one")
        return Told("a")

    monkeypatch.setattr("timebound.observe.journal.told_by", told_by)
    world = World(tmp_path)
    with world.writing():
        world.answer("one", {"label": "odd"})
        world.answer("two")
    assert [row["request"] for row in world.rows()] == ["two"]
    assert (world.journal.written, world.journal.dropped) == (1, 1)


def test_large_answers_that_wait_to_be_written_are_counted_as_well_as_inputs(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(100):
        world.answer(f"r{number}", "x" * 1_000_000)
    assert world.journal.dropped == 36, "64 MB wait at most"


def test_words_about_answers_that_wait_to_be_written_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path)
    said = [world.journal.say(("m", f"key-{number}", "right", "", NOON, "")) for number in range(50_010)]
    assert said == [True] * 50_000 + [False] * 10


def test_words_about_answers_take_no_more_than_the_history_may(tmp_path: Path) -> None:
    world = World(tmp_path, most_bytes=20_000)
    with world.writing():
        for number in range(100):
            world.answer(str(number))
            world.journal.say(("m", f"key-{number}", "right", "", NOON, ""))
    assert world.history.counts(filter_of({}), "verdict") == [("right", 20)]


@pytest.mark.parametrize("place", ["../../etc/passwd", "20261118T000000-0001/x", "nowhere/1", "feedback/1"])
def test_no_place_leads_out_of_the_folder(tmp_path: Path, place: str) -> None:
    assert World(tmp_path).history.body(place, "input") is None


@pytest.mark.parametrize("number", ["0", "2", "9" * 18, "9" * 30, "9" * 5000])
def test_a_number_that_no_row_has_finds_nothing(tmp_path: Path, number: str) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("one")
    (row,) = world.rows()
    assert world.history.body(row["place"], "input") is not None
    assert world.history.body(f"{row['place'].partition('/')[0]}/{number}", "input") is None


def test_counts_per_label_user_and_day(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        for number in range(5):
            world.answer(f"r{number}", {"label": "ab"[number % 2]}, body=b'{"user": "u"}')
    assert world.history.counts(filter_of({}), "label") == [("a", 3), ("b", 2)]
    assert world.history.counts(filter_of({}), "user") == [("u", 5)]
    assert world.history.counts(filter_of({}), "day") == [("2026-11-18", 5)]
    assert world.history.counts(filter_of({}), "day", 13 * 3600) == [("2026-11-19", 5)]
    with pytest.raises(BadInput):
        world.history.counts(filter_of({}), "input")


def test_right_or_wrong_is_joined_by_key_and_the_last_word_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("one")
        world.answer("two")
        world.journal.say(("m", "key-one", "right", "", NOON, ""))
        world.journal.say(("m", "key-one", "wrong", "b", NOON, ""))
    (row,) = world.rows(verdict="wrong")
    assert (row["request"], row["right_label"]) == ("one", "b")
    assert {row["request"]: row["verdict"] for row in world.rows()} == {"one": "wrong", "two": ""}
    assert world.history.counts(filter_of({"verdict": "wrong"}), "label") == [("a", 1)]
    exported = map(msgspec.json.decode, world.history.export(filter_of({}), "ndjson"))
    assert [(row["request"], row["verdict"]) for row in exported] == [("one", "wrong"), ("two", "")]
    assert world.history.counts(filter_of({}), "verdict") == [("wrong", 1)]


def test_members_that_disagreed_are_found(tmp_path: Path) -> None:
    world = World(tmp_path)
    votes = '[{"member":"x","answer":{"label":"a"}},{"member":"y","answer":{"label":"%s"}}]'
    with world.writing():
        world.answer("same", votes=votes % "a")
        world.answer("apart", votes=votes % "b")
    assert [row["request"] for row in world.rows(disagreed="1")] == ["apart"]


def test_csv_ndjson_and_parquet_say_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        for number in range(20):
            world.answer(f"r{number}", {"label": f"l,{number}\n"}, body=b'{"user": "u"}')
    every = filter_of({})
    table = list(csv.DictReader(io.StringIO(b"".join(world.history.export(every, "csv")).decode(), newline="")))
    lines = [msgspec.json.decode(line) for line in world.history.export(every, "ndjson")]
    columns = parquet.read_table(io.BytesIO(b"".join(world.history.export(every, "parquet")))).to_pylist()
    assert lines == columns
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in lines] == table
    assert len(table) == 20


def outcome(name: str, body: bytes) -> tuple[Any, ...]:
    """A row as the ledger takes it."""
    return (NOON, name, *["x"] * (len(OUTCOMES) - 3), body)


@pytest.mark.parametrize(("rows", "body_bytes"), [(200, 3_000), (50, 60_000), (1, 400_000)])
def test_whole_files_go_when_the_history_is_too_large_and_it_stays_near_its_limit(
    tmp_path: Path, rows: int, body_bytes: int
) -> None:
    limit, sizes = 26_000_000, []
    ledger = Ledger(tmp_path, most_bytes=limit, most_s=1e6)
    for number in range(int(1.6 * limit / (rows * body_bytes))):
        minute = (number, "m", "1", "full", "computed", "", rows, rows, 1.0)
        ledger.write([outcome(f"r{number}", b"y" * body_bytes)] * rows, [minute], NOON + number)
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    ledger.close()
    assert 0.95 * limit <= max(sizes) <= 1.05 * limit
    assert min(sizes[len(sizes) * 3 // 4 :]) >= 0.95 * limit


def test_counts_by_minute_take_their_part_of_the_limit_and_no_more(tmp_path: Path) -> None:
    limit = 5_000_000
    ledger = Ledger(tmp_path, most_bytes=limit, most_s=1e9)
    for part in range(20):
        rows = [(1_000 * part + one, "model", "1", "full", "computed", "", 1, 1, 1.0) for one in range(1_000)]
        ledger.write([], rows, NOON)
    ledger.close()
    with closing(read_only(tmp_path / "minutes.sqlite")) as minutes:
        left = minutes.execute("SELECT count(*), max(minute) FROM minutes").fetchone()
    assert (tmp_path / "minutes.sqlite").stat().st_size <= 0.12 * limit
    assert left[0] > 5_000
    assert left[1] == 19_999


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
def test_however_many_come_at_once_each_is_written_in_its_place(tmp_path: Path, count: int) -> None:
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    ledger.write([outcome(str(number), b"x") for number in range(count)], [], NOON)
    ledger.close()
    assert ledger.kept == count
    assert [row["request"] for row in History(tmp_path).each(filter_of({}))] == [str(n) for n in range(count)]


def test_a_file_that_somebody_else_took_away_is_begun_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    ledger.write([outcome("one", b"")], [], NOON)
    for file in tmp_path.glob("2*"):
        file.unlink()
    ledger.write([outcome("two", b"")], [], NOON)
    ledger.close()
    assert [row["request"] for row in History(tmp_path).rows(filter_of({}), most=9)] == ["two"]


def garbage(file: Path) -> None:
    file.write_bytes(b"\xde\xad" * 10_000)


def spoilt_pages(file: Path) -> None:
    damage(file, ALL_PAGES)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:6_000])


@pytest.mark.parametrize("spoil", [garbage, truncated, spoilt_pages])
def test_a_damaged_file_beside_those_of_outcomes_is_set_aside_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    def minute(number: int) -> tuple[Any, ...]:
        return (int(NOON // 60) - number % 1_000, f"model-{number}", "1", "full", "computed", "", 1, 1, 1.0)

    def word(number: int) -> tuple[Any, ...]:
        return ("m", f"key-{number}", "right", "", NOON, "")

    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    ledger.write([], list(map(minute, range(2_000))), NOON)
    ledger.write_feedback(list(map(word, range(2_000))))
    ledger.close()
    for name in ("minutes", "feedback"):
        spoil(tmp_path / f"{name}.sqlite")
    world = World(tmp_path)
    with world.writing():
        world.answer("2000")
        world.journal.say(word(2_000))
    assert world.journal.counts()["history_set_aside"][1]() == 2
    assert world.history.counts(filter_of({}), "verdict") == [("right", 1)]
    assert [row["count"] for row in world.history.minutes(filter_of({}), NOON - 60, NOON + 60, 60)] == [1]
    assert {file.name for file in tmp_path.glob("*.damaged")} == {"minutes.damaged", "feedback.damaged"}
    assert [record.message.count("is damaged") for record in caplog.records] == [1, 1]


def test_a_file_that_is_damaged_while_it_is_written_is_set_aside(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    ledger.write_feedback([("m", "one", "right", "", NOON, "")])
    ledger.close()  # as after any failure to write
    garbage(tmp_path / "feedback.sqlite")
    ledger.write_feedback([("m", "two", "right", "", NOON, "")])
    ledger.close()
    assert ledger.set_aside == 1
    with closing(read_only(tmp_path / "feedback.sqlite")) as words:
        assert [row["key"] for row in words.execute("SELECT key FROM feedback")] == ["two"]


def test_other_files_in_the_folder_are_left_alone_and_do_not_count(tmp_path: Path) -> None:
    others = ("2026.sqlite", "20261118T160000-0001 (copy).sqlite", "backup.sqlite", "2notes-x.sqlite")
    for name in others:
        (tmp_path / name).write_bytes(b"x" * 2_000_000)
    world = World(tmp_path, most_bytes=1_000_000)
    with world.writing():
        world.answer("one")
    assert [row["request"] for row in world.rows()] == ["one"]
    assert all((tmp_path / name).stat().st_size == 2_000_000 for name in others)


def test_what_is_written_before_the_clock_is_set_is_found_and_goes_with_its_age(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wall = 100.0  # a machine without a clock of its own begins in 1970
    with world.writing():
        world.answer("early")
    assert [row["request"] for row in world.rows()] == ["early"]
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1000.0)
    ledger.write([outcome("late", b"")], [], NOON)
    ledger.close()
    assert [row["request"] for row in world.rows()] == ["late"]


def test_what_is_written_while_the_clock_is_ahead_leaves_its_place_to_what_comes(tmp_path: Path) -> None:
    ahead = Ledger(tmp_path, most_bytes=5_000_000, most_s=1e6)
    for number in range(20):
        ahead.write([outcome(f"ahead {number}", b"x" * 400_000)], [], NOON + 1e8)
    ahead.close()
    ledger = Ledger(tmp_path, most_bytes=5_000_000, most_s=1e6)
    for number in range(20):
        ledger.write([outcome(f"now {number}", b"x" * 150_000)], [], NOON)
    ledger.close()
    found = {row["request"] for row in History(tmp_path).rows(filter_of({}), most=99)}
    assert {f"now {number}" for number in range(20)} <= found
    assert found != {f"now {number}" for number in range(20)}, "what needs no place stays"


def test_tries_that_came_to_nothing_leave_no_files(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=1e6)
    for _ in range(3):
        with pytest.raises(sqlite3.Error):
            ledger.write([("too few columns",)], [], NOON)
        ledger.give_up()
    assert files(tmp_path) == []
    ledger.write([outcome("one", b"")], [], NOON)
    ledger.give_up()
    assert len(files(tmp_path)) == 1
    assert ledger.kept == 1


def test_old_files_go_and_counts_by_minute_stay_longer(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.writing():
        world.answer("old")
    ledger = Ledger(tmp_path, most_bytes=10**9, most_s=0.0)
    ledger.write([], [], NOON + 7200)
    ledger.close()
    assert [row["request"] for row in world.rows()] == []
    assert (tmp_path / "minutes.sqlite").exists()


def test_a_folder_that_cannot_be_written_costs_outcomes_that_are_counted_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    world = World(tmp_path / "taken")
    with world.writing():
        world.answer("one")
        world.answer("two")
    assert (world.journal.dropped, world.journal.written) == (2, 0)


FULL = """
import sys, resource
from pathlib import Path
from tests.observe.test_journal import World
world = World(Path(sys.argv[1]))
soft = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, soft))
with world.writing():
    for number in range(3000):
        world.answer(f"r{number}", body=b'{"text": "' + b"x" * 500 + b'"}')
print(world.journal.written, world.journal.dropped)
"""


def test_a_full_disk_drops_and_counts_and_what_was_written_opens(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    written, dropped = map(int, done.stdout.split())
    assert written + dropped == 3000
    assert dropped > 0
    assert sum(count for _, count in History(tmp_path).counts(filter_of({}), "model")) == written


KILLED = """
import sys, time, os, signal
from pathlib import Path
from tests.observe.test_journal import World
world = World(Path(sys.argv[1]))
world.journal.start()
for number in range(200):
    world.answer(f"r{number}")
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_killed_process_at_most_the_last_second_is_lost(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    found = sum(count for _, count in History(tmp_path).counts(filter_of({}), "model"))
    assert found >= 100


def test_a_filter_that_is_none_is_named() -> None:
    with pytest.raises(BadInput, match="colour"):
        filter_of({"colour": "red"})
    with pytest.raises(BadInput, match="since"):
        filter_of({"since": "yesterday"})
