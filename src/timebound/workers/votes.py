"""What the members of an ensemble answered, each by itself, in one line of JSON that fits a response header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from timebound.types import Outcome

MAX_BYTES = 3000
"""Proxies commonly give all headers of an answer 4 KiB, and an answer has others."""
_LONGEST_FIELD = 64


def votes_line(votes: Sequence[tuple[str, Outcome]]) -> str:
    """A JSON list of `{"member": ..., "answer": ...}`, ASCII, no longer than `MAX_BYTES`.

    Answers that are too long keep their short fields only; if that is not enough, members are named without an answer,
    and if even that is too long the line is empty.
    """
    entries = [_entry(member, outcome) for member, outcome in votes]
    line = _dump(entries)
    if len(line) > MAX_BYTES:
        entries = [_shortened(entry) for entry in entries]
        line = _dump(entries)
    for place in reversed(range(len(entries))):  # the first members count most
        if len(line) > MAX_BYTES:
            entries[place] = {"member": entries[place]["member"][:_LONGEST_FIELD], "is_cut": True}
            line = _dump(entries)
    return line if len(line) <= MAX_BYTES else ""


def _entry(member: str, outcome: Outcome) -> dict[str, Any]:
    if outcome.code:
        return {"member": member, "problem": json.loads(outcome.body)["detail"]}
    if outcome.media != "application/json":
        return {"member": member, "bytes": len(outcome.body)}
    return {"member": member, "answer": json.loads(outcome.body)}


def _shortened(entry: dict[str, Any]) -> dict[str, Any]:
    answer = entry.get("answer")
    if not isinstance(answer, dict):
        return entry
    short = {name: value for name, value in answer.items() if len(name) + len(_dump(value)) <= _LONGEST_FIELD}
    return {**entry, "answer": short, "is_cut": len(short) < len(answer)}


def _dump(value: Any) -> str:
    # ensure_ascii leaves DEL, which a header must not hold.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")
