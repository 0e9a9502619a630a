"""Which outcomes of a history are meant, as query strings and flags say it, and as SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec

from timebound.errors import BadInput

_EQUAL = ("model", "version", "quality", "source", "code", "reason", "label", "user", "key", "request", "client")
_INDEXED = ("key", "user")
"""Columns whose index has no row of those that are empty: SQLite takes it only if it is told that they are not."""
_HOUR_S = 3600.0
_LONGEST_S = 2 * _HOUR_S
"""A file is named by the hour in which it was written. No outcome in it began longer before: deadlines have an hour."""


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

    def has_hour(self, begin: float) -> bool:
        """Whether a file that was written in the hour from here on can have any of them."""
        is_after = self.since is None or begin + _HOUR_S > self.since
        return is_after and (self.until is None or begin - _LONGEST_S < self.until)

    def is_of(self, names: Collection[str]) -> bool:
        """Whether it asks for nothing but these fields and a time."""
        others = (self.below is not None, self.disagreed, self.has_input, self.verdict)
        return not any(others) and set(self.equal) <= set(names)

    def where(self, *, is_by_time: bool = True) -> tuple[str, list[Any]]:
        """As SQL. Times find rows by their index, unless rows come in another order than that of time."""
        parts, values = [f"outcomes.{name} = ?" for name in self.equal], list[Any](self.equal.values())
        parts += [f"outcomes.{name} != ''" for name in self.equal if name in _INDEXED]
        if self.verdict:
            parts += ["feedback.verdict = ?", "outcomes.key != ''"]
            values.append(self.verdict)
        at = "outcomes.at" if is_by_time else "+outcomes.at"
        bounds = ((f"{at} >= ?", self.since), (f"{at} < ?", self.until), ("outcomes.confidence < ?", self.below))
        for part, value in bounds:
            if value is not None:
                parts.append(part)
                values.append(value)
        parts += ["disagreed = 1"] * self.disagreed + ["input IS NOT NULL"] * self.has_input
        return " AND ".join(parts) or "1", values


def filter_of(given: Mapping[str, str]) -> Filter:
    """What a query string or flags ask for; raises `BadInput` naming what is wrong."""
    known = {*_EQUAL, "since", "until", "below", "disagreed", "has_input", "verdict"}
    equal = {name: value for name, value in given.items() if name in _EQUAL and value}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(f"{unknown[0]!r} is no filter; there are {', '.join(sorted(known))}", field=unknown[0])
    verdict = given.get("verdict", "")
    if verdict not in ("", "right", "wrong"):
        raise BadInput(f"verdict is {verdict!r}; it can be right or wrong", field="verdict")
    disagreed, has_input = (given.get(name, "") in ("1", "true", "yes") for name in ("disagreed", "has_input"))
    since, until = (time_of(given.get(name, ""), name) for name in ("since", "until"))
    below = _number(given["below"], "below", "a number") if given.get("below") else None
    return Filter(
        equal=equal, since=since, until=until, below=below, disagreed=disagreed, has_input=has_input, verdict=verdict
    )


def time_of(text: str, name: str) -> float | None:
    """Seconds since 1970, also of a date: of one without a zone in UTC, by which files are named."""
    if not text:
        return None
    try:
        day = None if _is_number(text) else datetime.fromisoformat(text)
    except ValueError:
        day = None
    if day is None:
        return _number(text, name, "seconds since 1970, or a date such as 2026-11-18 or 2026-11-18T20:00 (UTC)")
    return (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp()


def _number(text: str, name: str, what: str) -> float:
    if not _is_number(text):
        raise BadInput(f"{name} is {text!r}; give {what}", field=name)
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
