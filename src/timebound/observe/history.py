"""Reads the history: outcomes by filter, counts, exports. Files are opened to be read only, one after the other."""

from __future__ import annotations

import logging
import sqlite3
import time
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from heapq import nsmallest
from itertools import chain, groupby
from math import inf
from pathlib import Path
from typing import Any

from timebound.errors import BadInput, RequestError
from timebound.observe.database import address_to_read, is_damage, read_only
from timebound.observe.exports import FORMATS, WRITERS
from timebound.observe.filter import Filter
from timebound.observe.judged import is_servers_own
from timebound.observe.ledger import BLOBS, OUTCOMES, begin_of, each_connection
from timebound.observe.sides import Side

log = logging.getLogger("timebound.history")

SHOWN = tuple(name for name in OUTCOMES if name not in BLOBS)
COUNTED = ("label", "user", "day", "model", "version", "quality", "source", "code", "reason", "verdict")
ROLLED_UP = ("model", "version", "quality", "source", "code")
"""What counts by minute can be divided by."""
ORDERS = {"newest": "outcomes.at DESC", "unsure": "outcomes.confidence ASC"}
_MOST_S = 5.0
"""A question that takes longer is given up: fewer hours, or a more exact filter, take less."""
_STEPS = 10_000
_GROUPS = 1_000
_LONGEST_NUMBER = 18
"""Digits of a row's number, which has 64 bits."""


class History:
    """One folder. Every call reads files, so it belongs in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged: set[str] = set()
        """Names of files of which something could not be read."""

    def damaged(self, wanted: Filter) -> list[str]:
        """The files of these hours that were found damaged: what is in them is left out."""
        begins = {name: begin_of(name.partition(".")[0]) for name in self._damaged.copy()}
        found = (name for name, begin in begins.items() if begin is not None and wanted.has_hour(begin))
        return sorted(name for name in found if (self._folder / name).exists())

    def rows(self, wanted: Filter, *, most: int, order: str = "newest", skip: int = 0) -> list[dict[str, Any]]:
        """Outcomes without bodies, the newest or the least sure first; each has the `place` of its body."""
        if order not in ORDERS:
            raise BadInput(f"order is {order!r}; it can be {' or '.join(ORDERS)}", field="order")
        found: list[dict[str, Any]] = []
        for _, files in groupby(self._each(wanted), lambda each: each[0].name[:11]):
            # Files of one hour may be of several servers, or parts of it: only an older hour has nothing newer.
            found = nsmallest(
                skip + most,
                chain(found, *(self._told(*each, wanted, order, skip + most) for each in files)),
                _FIRST[order],
            )
            if order == "newest" and len(found) >= skip + most:
                break
        return found[skip:]

    def each(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        """Every outcome without bodies, the oldest first."""
        return self._all(wanted, SHOWN)

    def counts(self, wanted: Filter, by: str, east_s: int = 0) -> list[tuple[str, int]]:
        """How many there are of each value of a field, the most first; by day in order of time.

        Days begin where clocks are so many seconds ahead of UTC.
        """
        if by not in COUNTED:
            raise BadInput(f"by is {by!r}; it can be {', '.join(COUNTED)}", field="by")
        total: Counter[str] = Counter()
        column = {"day": f"date(outcomes.at + {east_s}, 'unixepoch')", "verdict": "feedback.verdict"}.get(
            by, f"outcomes.{by}"
        )
        where, values = wanted.where()
        if by == "verdict":
            where += " AND feedback.verdict != '' AND outcomes.key != ''"
        for file, connection in self._each(wanted):
            source = _judged(connection)
            statement = (
                f"SELECT name, count(*) FROM (SELECT {column} AS name, {source} WHERE {where})"
                f" GROUP BY 1 ORDER BY 2 DESC LIMIT {_GROUPS}"
            )
            with self._unless_damaged(file):
                total.update({str(name): count for name, count in _ask(connection, statement, values)})
        return sorted(total.items()) if by == "day" else total.most_common(_GROUPS)

    def sides(self, wanted: Filter) -> dict[str, Side]:
        """What each version of one model did, with what was said of its answers."""
        found = defaultdict[str, Side](Side)
        for row in self.each(wanted):
            is_clients = bool(row["code"]) and not is_servers_own(row["status"], row["code"])
            if row["source"] == "stored" or not row["version"] or is_clients:
                continue
            side = found[row["version"]]
            side.due += 1
            if row["code"]:
                continue
            side.in_time += row["quality"] != "fallback" and row["ms"] <= (row["limit_ms"] or inf)
            if row["source"] == "computed":
                side.took(row["ms"] / 1e3)
            if row["quality"] == "full":
                side.told(row["label"], row["confidence"])
            side.right += row["verdict"] == "right"
            side.wrong += row["verdict"] == "wrong"
        return dict(sorted(found.items()))

    def minutes(self, wanted: Filter, since: float, until: float, step: float) -> list[dict[str, Any]]:
        """Counts by minute, or by longer steps in seconds; they outlive the outcomes."""
        if not wanted.is_of(ROLLED_UP):
            raise BadInput(f"counts by minute can be had by {', '.join(ROLLED_UP)} alone, besides since and until")
        minutes = max(1, int(step // 60))
        where = "".join(f" AND {name} = ?" for name in wanted.equal)
        statement = f"""
            SELECT minute / {minutes} * {minutes * 60} AS at, sum(count) AS count, sum(in_time) AS in_time,
            sum(ms) / sum(count) AS mean_ms, sum(count * (quality = 'full')) AS full,
            sum(count * (quality = 'partial')) AS partial, sum(count * (quality = 'fallback')) AS fallback,
            sum(count * (code != '')) AS failed FROM minutes
            WHERE minute >= ? AND minute < ?{where} GROUP BY 1 ORDER BY 1
        """
        values = [since // 60, -(-until // 60), *wanted.equal.values()]
        return [dict(row) for row in self._beside("minutes", statement, values)]

    def body(self, place: str, which: str) -> tuple[bytes, str] | None:
        """What was sent or answered, and its media type; None if it was not kept."""
        found = self._at(place, which, "media") if which in BLOBS else None
        return None if found is None or found[0] is None else (found[0], found[1] or "application/json")

    def sent(self, place: str) -> tuple[str, str, bytes] | None:
        """Which model was asked, in which version, and what; None if it was not kept."""
        found = self._at(place, "model", "version", "input")
        return None if found is None or found["input"] is None else (found[0], found[1], found[2])

    def _at(self, place: str, *columns: str) -> sqlite3.Row | None:
        stem, _, number = place.rpartition("/")
        file = self._folder / f"{stem}.sqlite"
        is_place = begin_of(stem) is not None and number.isdecimal() and len(number) <= _LONGEST_NUMBER
        if not is_place or not file.is_file():
            return None
        found: list[sqlite3.Row] = []
        with self._unless_damaged(file), closing(read_only(file)) as connection:
            statement = f"SELECT {', '.join(columns)} FROM outcomes WHERE rowid = ?"
            found += connection.execute(statement, [int(number)])
        return found[0] if found else None

    def export(self, wanted: Filter, form: str) -> Iterator[bytes]:
        """All outcomes with their bodies, the oldest first, as a file of this format."""
        if form not in FORMATS:
            raise BadInput(f"format is {form!r}; it can be {', '.join(FORMATS)}", field="format")
        return WRITERS[form](self._whole(wanted))

    def _whole(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        for row in self._all(wanted, OUTCOMES):
            yield row | {name: _text(row[name]) for name in BLOBS}

    def _all(self, wanted: Filter, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        where, values = wanted.where()
        every = each_connection(self._folder, wanted.has_hour, newest_first=False, on_damage=self._leave_out)
        for file, connection in every:
            statement = f"SELECT {_columns(columns)}, {_judged(connection)} WHERE {where} ORDER BY outcomes.at"
            with self._unless_damaged(file):
                yield from map(dict, connection.execute(statement, values))

    def _each(self, wanted: Filter) -> Iterator[tuple[Path, sqlite3.Connection]]:
        end = time.monotonic() + _MOST_S
        for file, connection in each_connection(self._folder, wanted.has_hour, on_damage=self._leave_out):
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
            yield file, connection

    def _told(
        self, file: Path, connection: sqlite3.Connection, wanted: Filter, order: str, most: int
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        with self._unless_damaged(file):
            rows += map(dict, _ask(connection, *question(connection, wanted, order, most)))
        return [{**row, "place": f"{file.stem}/{row.pop('number')}"} for row in rows]

    @contextmanager
    def _unless_damaged(self, file: Path) -> Iterator[None]:
        """Go on without a file, or without its rest, where it cannot be read."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._leave_out(file, error)

    def _leave_out(self, file: Path, error: sqlite3.Error) -> None:
        if file.name not in self._damaged:
            self._damaged.add(file.name)
            log.warning(
                "the history's file %s is damaged; what is in it is left out", file, extra={"error": str(error)}
            )

    def _beside(self, name: str, statement: str, values: list[Any]) -> list[sqlite3.Row]:
        try:
            connection = read_only(self._folder / f"{name}.sqlite")
            try:
                return connection.execute(statement, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []  # there is none yet


_FIRST: dict[str, Callable[[dict[str, Any]], float]] = {
    "newest": lambda row: -row["at"],
    "unsure": lambda row: float(row["confidence"]),
}


def question(connection: sqlite3.Connection, wanted: Filter, order: str, most: int) -> tuple[str, list[Any]]:
    """What one file is asked for the first outcomes, and with which values."""
    where, values = wanted.where(is_by_time=order == "newest")
    where += " AND outcomes.confidence IS NOT NULL" if order == "unsure" else ""
    names = f"outcomes.rowid AS number, {_columns(SHOWN)}, input IS NOT NULL AS kept"
    statement = f"SELECT {names}, {_judged(connection)} WHERE {where} ORDER BY {ORDERS[order]} LIMIT ?"
    return statement, [*values, most]


def _columns(names: Sequence[str]) -> str:
    return ", ".join(f"outcomes.{name} AS {name}" for name in names)


def _judged(connection: sqlite3.Connection) -> str:
    """The last columns and the source of a statement about outcomes, with what was said of each by its key."""
    (file,) = (row["file"] for row in connection.execute("PRAGMA database_list") if row["name"] == "main")
    try:
        beside = Path(file).with_name("feedback.sqlite")
        connection.execute("ATTACH ? AS said", [address_to_read(beside)])
        connection.execute("SELECT 1 FROM said.feedback LIMIT 1")
        feedback = "said.feedback"
    except sqlite3.Error:  # there is none yet
        feedback = "(SELECT NULL AS model, NULL AS key, NULL AS verdict, NULL AS label)"
    return (
        "coalesce(feedback.verdict, '') AS verdict, coalesce(feedback.label, '') AS right_label FROM outcomes"
        f" LEFT JOIN {feedback} AS feedback ON feedback.model = outcomes.model AND feedback.key = outcomes.key"
    )


def _ask(connection: sqlite3.Connection, statement: str, values: list[Any]) -> list[sqlite3.Row]:
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        detail = f"this took more than {_MOST_S:g} s; ask for less, such as a few hours by since and until"
        raise RequestError(detail, code="too_much_history") from None


def _text(body: bytes | None) -> str | None:
    """As text if it is text, else as base64."""
    if body is None:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode()
