"""The files of the history: SQLite, one per hour or sooner if it is full; roll-ups by minute and feedback beside them.

20261118T200000-1.sqlite   outcomes of an hour, or of a part of it
minutes.sqlite             counts by minute, kept ten times as long
feedback.sqlite            who said that an answer was right or wrong
feedback.damaged           the last one of that name that was damaged
"""

from __future__ import annotations

import calendar
import os
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from timebound.observe.database import ASIDE, PARTS, Beside, Statement, in_one, is_damage, open_file, read_only

OUTCOMES = (
    "at", "request", "model", "version", "key", "client", "status", "code", "quality", "source", "reason", "members",
    "of_members", "ms", "limit_ms", "queue_ms", "prepare_ms", "infer_ms", "finish_ms", "predicted_ms", "batch", "size",
    "label", "confidence", "user", "votes", "disagreed", "media", "input", "answer",
)  # fmt: skip
"""Columns, in the order in which the journal gives them."""
BLOBS = ("input", "answer")
_PART = 25
"""A file is full at this part of what all may take: dropping one frees that much."""
_LEAST_BYTES = 1_000_000
_MOST_FEEDBACK = 1_000_000
_FEEDBACK_BYTES = 1_000
"""What a word takes at most, or hardly more: together they take no more than what they are about."""
_LONGER = 10
"""Roll-ups are kept so many times as long as outcomes."""
_PART_OF_MINUTES = 10
"""They take at most this part of what all may take: the oldest go first."""
_AT_ONCE = 8
"""A transaction, and what SQLite writes ahead, take hardly more than this part of a file: none gets too large."""
_ROW_BYTES = 500
"""An outcome without what was sent and answered takes about as much."""
_PAGE_BYTES = 4_096
_AHEAD_S = 3_600.0
"""Clocks of servers that share a folder differ less."""
_ENDING = ".sqlite"
_OUTCOMES_OF, _BESIDE = re.compile(r"\d{8}T\d{6}-\d{1,6}"), ("minutes", "feedback")
"""How files are called."""

_MAKE = f"""
CREATE TABLE IF NOT EXISTS outcomes ({", ".join(OUTCOMES)});
CREATE INDEX IF NOT EXISTS by_key ON outcomes(key) WHERE key != '';
CREATE INDEX IF NOT EXISTS by_at ON outcomes(at);
CREATE INDEX IF NOT EXISTS by_request ON outcomes(request);
CREATE INDEX IF NOT EXISTS by_user ON outcomes(user) WHERE user != '';
CREATE INDEX IF NOT EXISTS by_confidence ON outcomes(confidence) WHERE confidence IS NOT NULL;
"""
_MAKE_MINUTES = """
CREATE TABLE IF NOT EXISTS minutes (minute INTEGER, model, version, quality, source, code, count INTEGER,
in_time INTEGER, ms REAL, PRIMARY KEY (minute, model, version, quality, source, code)) WITHOUT ROWID;
"""
_MAKE_FEEDBACK = """
CREATE TABLE IF NOT EXISTS feedback (model, key, verdict, label, at REAL, client, PRIMARY KEY (model, key));
"""
_ROWS = 32
"""In one statement."""
_PLACES = f"({','.join('?' * len(OUTCOMES))})"
_ADD_OUTCOME, _ADD_OUTCOMES = (f"INSERT INTO outcomes VALUES {','.join([_PLACES] * rows)}" for rows in (1, _ROWS))
_ADD_MINUTE = """
INSERT INTO minutes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
count = count + excluded.count, in_time = in_time + excluded.in_time, ms = ms + excluded.ms
"""
_DROP_MINUTES = """
DELETE FROM minutes WHERE minute <= (SELECT minute FROM minutes ORDER BY minute
LIMIT 1 OFFSET (SELECT count(*) / 10 FROM minutes))
"""


@lru_cache(10_000)
def begin_of(stem: str) -> float | None:
    """When the hour of a file of outcomes began, by its name; None of others, which somebody put there."""
    try:
        hour = time.strptime(stem[:11], "%Y%m%dT%H") if _OUTCOMES_OF.fullmatch(stem) else None
    except ValueError:
        return None
    return None if hour is None else float(calendar.timegm(hour))


def files(folder: Path) -> list[Path]:
    """The files of outcomes, the oldest first; others are left alone."""
    return sorted(file for file in folder.glob("*.sqlite") if begin_of(file.stem) is not None)


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file on disk, with what SQLite keeps beside it."""
    sizes: defaultdict[str, int] = defaultdict(int)
    with os.scandir(folder) as entries:
        for entry in entries:
            name, ending, _ = entry.name.partition(_ENDING)
            is_beside = name.partition(ASIDE)[0] in _BESIDE
            if is_beside or (ending and begin_of(name) is not None):
                with suppress(FileNotFoundError):
                    sizes[name + ending] += entry.stat().st_size
    return sizes


def _size_of(file: Path) -> int:
    total = 0
    for part in (file, *(file.with_name(file.name + more) for more in PARTS)):
        with suppress(FileNotFoundError):
            total += part.stat().st_size
    return total


class Ledger:
    """Writes; several servers may share a folder, each with files of its own.

    Everything raises `sqlite3.Error` or `OSError` if it cannot.
    """

    def __init__(self, folder: Path, *, most_bytes: int, most_s: float) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._most_feedback = min(_MOST_FEEDBACK, most_bytes // _FEEDBACK_BYTES)
        self._full = max(_LEAST_BYTES, most_bytes // _PART)
        self._most_s = most_s
        self.kept = 0
        """Outcomes that were ever written: also those of a call that failed after them."""
        self._connection: sqlite3.Connection | None = None
        self._file = folder / "none"
        self._has_outcomes = False
        """Whether the file has any: not to be asked of it, since a full disk lets nobody open it."""
        self._hour = -1
        self._minutes = Beside(folder / f"minutes{_ENDING}", _MAKE_MINUTES)
        self._feedback = Beside(folder / f"feedback{_ENDING}", _MAKE_FEEDBACK)

    @property
    def set_aside(self) -> int:
        """Damaged files for which new ones were begun."""
        return self._minutes.set_aside + self._feedback.set_aside

    def check(self) -> None:
        """Look over the files that all hours share."""
        self._minutes.check()
        self._feedback.check()

    def write(self, rows: Sequence[tuple[Any, ...]], minutes: Sequence[tuple[Any, ...]], now: float) -> None:
        """Add outcomes and counts; what was kept when it fails is in `kept`."""
        for part in _parts(rows, self._full // _AT_ONCE):
            in_one(self._present(now), _statements(part))
            self._has_outcomes = True
            self.kept += len(part)
            self._drop_old(now)
        if not rows:
            self._drop_old(now)
        self._drop_minutes(self._minutes.write(_ADD_MINUTE, minutes), now)

    def write_feedback(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add what was said of answers; the last word counts."""
        connection = self._feedback.write("INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?, ?)", rows)
        over = f"DELETE FROM feedback WHERE rowid <= (SELECT max(rowid) FROM feedback) - {self._most_feedback}"
        connection.execute(over)

    def close(self) -> None:
        """Leave whole files behind; what fails now has failed before."""
        for each in (self._connection, self._minutes, self._feedback):
            if each is not None:
                each.close()
        self._connection = None
        self._hour = -1

    def give_up(self) -> None:
        """The same after something failed: a file that came to nothing goes, or there would be one for each try."""
        self.close()
        if not self._has_outcomes and self._file.exists():
            self._remove(self._file)

    def _present(self, now: float) -> sqlite3.Connection:
        hour = int(now // 3600)
        size = _size_of(self._file)  # 0 if another server's limit took it
        if self._connection is None or hour != self._hour or not 0 < size < self._full:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._file, self._hour, self._has_outcomes = self._next_file(hour), hour, False
            self._connection = open_file(self._file, _MAKE)
            self._connection.execute(f"PRAGMA wal_autocheckpoint={max(10, self._full // _AT_ONCE // _PAGE_BYTES)}")
        return self._connection

    def _next_file(self, hour: int) -> Path:
        begin = time.strftime("%Y%m%dT%H0000", time.gmtime(hour * 3600))
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(file.stem.partition("-")[2]) for file in files(self.folder) if file.name.startswith(begin)]
        for number in range(max(numbers, default=0) + 1, 10_000):
            file = self.folder / f"{begin}-{number:04d}.sqlite"
            with suppress(FileExistsError):  # another server writes here too
                file.touch(exist_ok=False)
                return file
        raise OSError(f"{self.folder} has ten thousand files of one hour")

    def _drop_old(self, now: float) -> None:
        """Whole files go, the oldest first, beyond the bytes or the age; of bytes those from a clock that was ahead."""
        sizes = _sizes(self.folder)
        total = sum(sizes.values())
        begins = {name: begin for name in sorted(sizes) if (begin := begin_of(name.removesuffix(_ENDING))) is not None}
        for name in sorted(begins, key=lambda name: not _is_ahead(begins[name], now)):
            file, begin = self.folder / name, begins[name]
            is_old, is_ahead = begin + 3600 < now - self._most_s, _is_ahead(begin, now)
            if file == self._file or not (is_old or is_ahead or total > self._most_bytes):
                break
            if is_old or total > self._most_bytes:
                total -= sizes[name]
                self._remove(file)

    def _remove(self, file: Path) -> None:
        for part in (file, *(file.with_name(file.name + more) for more in PARTS)):
            part.unlink(missing_ok=True)

    def _drop_minutes(self, minutes: sqlite3.Connection, now: float) -> None:
        oldest = int((now - _LONGER * self._most_s) // 60)
        minutes.execute("DELETE FROM minutes WHERE minute < ?", (oldest,))
        pages, free = (minutes.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
        if (pages - free) * _PAGE_BYTES > self._most_bytes // _PART_OF_MINUTES:
            minutes.execute(_DROP_MINUTES)


def _is_ahead(begin: float, now: float) -> bool:
    """Whether a file is of an hour that comes only after the next one: a clock was wrong then."""
    return begin > now + _AHEAD_S


def _parts(rows: Sequence[tuple[Any, ...]], most_bytes: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows in order, so few at a time that they take about so many bytes."""
    first, held = 0, 0
    for number, row in enumerate(rows):
        held += _ROW_BYTES + sum(len(body) for body in row[-len(BLOBS) :] if body is not None)
        if held >= most_bytes:
            yield rows[first : number + 1]
            first, held = number + 1, 0
    if first < len(rows):
        yield rows[first:]


def _statements(rows: Sequence[tuple[Any, ...]]) -> Iterator[Statement]:
    """What adds these outcomes: many by each statement, for each takes the interpreter from the event loop once."""
    whole = len(rows) - len(rows) % _ROWS
    yield _ADD_OUTCOMES, (tuple(chain(*rows[first : first + _ROWS])) for first in range(0, whole, _ROWS))
    yield _ADD_OUTCOME, rows[whole:]


def each_connection(
    folder: Path,
    has_hour: Callable[[float], bool],
    *,
    newest_first: bool = True,
    on_damage: Callable[[Path, sqlite3.Error], None],
) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """Every file of outcomes of such hours in turn, to be read; one that goes meanwhile, or is none, is left out."""
    for file in reversed(files(folder)) if newest_first else files(folder):
        begin = begin_of(file.stem)
        if begin is None or not has_hour(begin):
            continue
        try:
            connection = read_only(file)
            connection.execute("SELECT 1 FROM outcomes LIMIT 1")
        except sqlite3.Error as error:
            if is_damage(error):
                on_damage(file, error)
            continue
        try:
            yield file, connection
        finally:
            connection.close()
