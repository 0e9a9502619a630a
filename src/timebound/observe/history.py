"""Reads the history: outcomes by filter, counts, exports. Files are opened to be read only, one after the other."""

from __future__ import annotations

import csv
import io
import sqlite3
import tempfile
import time
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import BadInput, MissingExtra, RequestError
from timebound.observe.judged import is_servers_own
from timebound.observe.ledger import BLOBS, OUTCOMES, each_connection, read_only
from timebound.observe.sides import Side

SHOWN = tuple(name for name in OUTCOMES if name not in BLOBS)
FORMATS = {"csv": "text/csv", "ndjson": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
COUNTED = ("label", "user", "day", "model", "version", "quality", "source", "code", "reason", "verdict")
_EQUAL = ("model", "version", "quality", "source", "code", "reason", "label", "user", "key", "request", "client")
_MOST_S = 5.0
"""A question that takes longer is given up: fewer hours, or a more exact filter, take less."""
_STEPS = 10_000
_GROUPS = 1_000
_LONGEST_NUMBER = 18
"""Digits of a row's number, which has 64 bits."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which outcomes are meant: fields that must be equal, and bounds."""

    equal: dict[str, str] = {}
    since: float | None = None
    until: float | None = None
    below: float | None = None
    """Only answers that are less sure than this."""
    disagreed: bool = False
    has_input: bool = False
    verdict: str = ""

    def where(self) -> tuple[str, list[Any]]:
        """As SQL."""
        parts, values = [f"outcomes.{name} = ?" for name in self.equal], list(self.equal.values())
        if self.verdict:
            parts.append("verdict = ?")
            values.append(self.verdict)
        bounds = (("outcomes.at >= ?", self.since), ("outcomes.at < ?", self.until), ("confidence < ?", self.below))
        for part, value in bounds:
            if value is not None:
                parts.append(part)
                values.append(value)  # type: ignore[arg-type]
        parts += ["disagreed = 1"] * self.disagreed + ["input IS NOT NULL"] * self.has_input
        return " AND ".join(parts) or "1", values


def filter_of(given: Mapping[str, str]) -> Filter:
    """What a query string or flags ask for; raises `BadInput` naming what is wrong."""
    known = {*_EQUAL, "since", "until", "below", "disagreed", "has_input", "verdict"}
    equal = {name: value for name, value in given.items() if name in _EQUAL and value}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(f"{unknown[0]!r} is no filter; there are {', '.join(sorted(known))}", field=unknown[0])
    numbers: dict[str, float | None] = {}
    for name in ("since", "until", "below"):
        try:
            numbers[name] = float(given[name]) if given.get(name) else None
        except ValueError:
            raise BadInput(
                f"{name} is {given[name]!r}; give a number (times in seconds since 1970)", field=name
            ) from None
    disagreed, has_input = (given.get(name, "") in ("1", "true", "yes") for name in ("disagreed", "has_input"))
    since, until, below = (numbers[name] for name in ("since", "until", "below"))
    return Filter(
        equal=equal, since=since, until=until, below=below, disagreed=disagreed, has_input=has_input,
        verdict=given.get("verdict", ""),
    )  # fmt: skip


class History:
    """One folder. Every call reads files, so it belongs into a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self, wanted: Filter, *, most: int, order: str = "newest") -> list[dict[str, Any]]:
        """Outcomes without bodies, the newest or the least sure first; each has the `place` of its body."""
        by = "confidence ASC" if order == "unsure" else "outcomes.at DESC"
        where, values = wanted.where()
        where += " AND confidence IS NOT NULL" if order == "unsure" else ""
        names = f"outcomes.rowid AS number, {_columns(SHOWN)}, input IS NOT NULL AS kept"
        found: list[dict[str, Any]] = []
        for file, connection in self._each():
            statement = f"SELECT {names}, {_judged(connection)} WHERE {where} ORDER BY {by} LIMIT ?"
            for row in _ask(connection, statement, [*values, most]):
                told = dict(row)
                told["place"] = f"{file.stem}/{told.pop('number')}"
                found.append(told)
            if order == "newest" and len(found) >= most:
                break
        if order == "unsure":
            found.sort(key=lambda row: row["confidence"])
        return found[:most]

    def each(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        """Every outcome without bodies, the oldest first."""
        return self._all(wanted, SHOWN)

    def counts(self, wanted: Filter, by: str) -> list[tuple[str, int]]:
        """How many there are of each value of a field, the most first; by day in order of time."""
        if by not in COUNTED:
            raise BadInput(f"by is {by!r}; it can be {', '.join(COUNTED)}", field="by")
        total: Counter[str] = Counter()
        if by == "verdict":
            statement = "SELECT verdict, count(*) FROM feedback WHERE ? IN ('', model) GROUP BY 1"
            total.update(
                {row[0]: row[1] for row in self._beside("feedback", statement, [wanted.equal.get("model", "")])}
            )
            return total.most_common()
        column = "date(outcomes.at, 'unixepoch')" if by == "day" else f"outcomes.{by}"
        where, values = wanted.where()
        for _, connection in self._each():
            source = _judged(connection)
            statement = (
                f"SELECT name, count(*) FROM (SELECT {column} AS name, {source} WHERE {where})"
                f" GROUP BY 1 ORDER BY 2 DESC LIMIT {_GROUPS}"
            )
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

    def minutes(self, model: str = "") -> list[dict[str, Any]]:
        """Counts by minute of the last day, which outlive the outcomes."""
        since = int(time.time() // 60) - 24 * 60
        statement = (
            "SELECT minute, sum(count) AS count, sum(in_time) AS in_time, sum(ms) / sum(count) AS mean_ms FROM minutes"
            " WHERE minute >= ? AND (? = '' OR model = ?) GROUP BY minute ORDER BY minute"
        )
        return [dict(row) for row in self._beside("minutes", statement, [since, model, model])]

    def body(self, place: str, which: str) -> tuple[bytes, str] | None:
        """What was sent or answered, and its media type; None if it was not kept."""
        stem, _, number = place.rpartition("/")
        if (
            which not in BLOBS
            or not number.isdecimal()
            or len(number) > _LONGEST_NUMBER
            or not stem.replace("T", "").replace("-", "").isdecimal()
        ):
            return None
        file = self._folder / f"{stem}.sqlite"
        if not file.is_file():
            return None
        connection = read_only(file)
        try:
            found = connection.execute(f"SELECT {which}, media FROM outcomes WHERE rowid = ?", [int(number)]).fetchone()
        finally:
            connection.close()
        return None if found is None or found[0] is None else (found[0], found[1] or "application/json")

    def export(self, wanted: Filter, form: str) -> Iterator[bytes]:
        """All outcomes with their bodies, the oldest first, as a file of this format."""
        if form not in FORMATS:
            raise BadInput(f"format is {form!r}; it can be {', '.join(FORMATS)}", field="format")
        return {"csv": _csv, "ndjson": _ndjson, "parquet": _parquet}[form](self._whole(wanted))

    def _whole(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        for row in self._all(wanted, OUTCOMES):
            yield row | {name: _text(row[name]) for name in BLOBS}

    def _all(self, wanted: Filter, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        where, values = wanted.where()
        for _, connection in each_connection(self._folder, newest_first=False):
            statement = f"SELECT {_columns(columns)}, {_judged(connection)} WHERE {where} ORDER BY outcomes.rowid"
            yield from map(dict, connection.execute(statement, values))

    def _each(self) -> Iterator[tuple[Path, sqlite3.Connection]]:
        end = time.monotonic() + _MOST_S
        for file, connection in each_connection(self._folder):
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
            yield file, connection

    def _beside(self, name: str, statement: str, values: list[Any]) -> list[sqlite3.Row]:
        try:
            connection = read_only(self._folder / f"{name}.sqlite")
            try:
                return connection.execute(statement, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []  # there is none yet


def _columns(names: Sequence[str]) -> str:
    return ", ".join(f"outcomes.{name} AS {name}" for name in names)


def _judged(connection: sqlite3.Connection) -> str:
    """The last columns and the source of a statement about outcomes, with what was said of each by its key."""
    (file,) = (row["file"] for row in connection.execute("PRAGMA database_list") if row["name"] == "main")
    try:
        beside = Path(file).with_name("feedback.sqlite")
        connection.execute("ATTACH ? AS said", [f"{beside.as_uri()}?mode=ro"])
        connection.execute("SELECT 1 FROM said.feedback LIMIT 1")
    except sqlite3.Error:  # there is none yet
        return "'' AS verdict, '' AS right_label FROM outcomes"
    return (
        "coalesce(feedback.verdict, '') AS verdict, coalesce(feedback.label, '') AS right_label FROM outcomes"
        " LEFT JOIN said.feedback ON feedback.model = outcomes.model AND feedback.key = outcomes.key"
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


_EXPORTED = (*OUTCOMES, "verdict", "right_label")


def _csv(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _EXPORTED)
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        if buffer.tell() > 65_536:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _ndjson(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield msgspec.json.encode(row) + b"\n"


def _parquet(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    try:
        import pyarrow as arrow  # heavy, and only for this
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet") from None
    schema = arrow.schema([(name, getattr(arrow, _KINDS.get(name, "string"))()) for name in _EXPORTED])
    with tempfile.TemporaryFile() as file:
        with parquet.ParquetWriter(file, schema) as writer:
            while part := list(islice(rows, 10_000)):
                writer.write_table(arrow.Table.from_pylist(part, schema))
        file.seek(0)
        while data := file.read(65_536):
            yield data


_KINDS = {
    **dict.fromkeys(("at", "ms", "limit_ms", "queue_ms", "prepare_ms", "infer_ms", "finish_ms"), "float64"),
    **dict.fromkeys(("predicted_ms", "confidence"), "float64"),
    **dict.fromkeys(("status", "members", "of_members", "batch", "size", "disagreed"), "int64"),
}
"""Columns of a Parquet file that are no texts."""
