"""What an answer says of itself: its label, how sure it is, and what its members said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_TELLING = ("answer", "label", "prediction", "class", "category", "result")
_SURE = ("confidence", "probability", "score")
_LONGEST_LABEL = 64
_LARGEST = 100_000
"""Bytes; a larger answer is not looked into."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Told(msgspec.Struct, frozen=True):
    """Empty, and None, where an answer does not say."""

    label: str = ""
    confidence: float | None = None


def told_by(body: bytes, media: str, label_field: str | None) -> Told:
    """What there is to read in an answer."""
    if media != "application/json" or len(body) > _LARGEST:
        return Told()
    try:
        answer = msgspec.json.decode(body)
    except _UNREADABLE:
        return Told()
    if not isinstance(answer, dict):
        return Told(_short(answer))
    names = _TELLING if label_field is None else (label_field,)
    label = next((text for name in names if name in answer and (text := _short(answer[name]))), "")
    return Told(label, _confidence(answer))


def field_of(body: bytes, name: str) -> str:
    """A field of a JSON body as a short text; empty if it has none."""
    try:
        return _short(msgspec.json.decode(body).get(name))
    except (*_UNREADABLE, AttributeError):
        return ""


def without(body: bytes, fields: list[str]) -> bytes | None:
    """A JSON body without these fields; None of one that cannot be read."""
    if not fields:
        return body
    try:
        return msgspec.json.encode(_without(msgspec.json.decode(body), frozenset(fields)))
    except _UNREADABLE:  # also one that nests deeper than can be gone through
        return None


def _without(value: Any, fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, fields) for name, inner in value.items() if name not in fields}
    return [_without(inner, fields) for inner in value] if isinstance(value, list) else value


def has_disagreed(votes: str) -> bool:
    """Whether the members of an ensemble did not all say the same."""
    try:
        said = msgspec.json.decode(votes)
    except _UNREADABLE:
        return False
    answers = [one["answer"] for one in said if isinstance(one, dict) and "answer" in one]
    return len({_short(_telling(one)) for one in answers}) > 1


def _telling(answer: Any) -> Any:
    return next((answer[name] for name in _TELLING if name in answer), answer) if isinstance(answer, dict) else answer


def _short(value: Any) -> str:
    is_text = isinstance(value, str | int | float) and len(str(value)) <= _LONGEST_LABEL
    return str(value) if is_text else ""


def _confidence(answer: Mapping[str, Any]) -> float | None:
    shares = answer.get("probabilities")
    values = [answer[name] for name in _SURE if name in answer]
    if isinstance(shares, dict | list):
        numbers = list(shares.values()) if isinstance(shares, dict) else shares
        if numbers and all(isinstance(share, int | float) for share in numbers):
            values.append(max(numbers))
    found = next((value for value in values if isinstance(value, int | float) and 0 <= value <= 1), None)
    return None if found is None else float(found)
