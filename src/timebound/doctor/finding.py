"""What a check says: that all is well, or what is wrong and what cures it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class State(StrEnum):
    """How it stands; a server should not be started on a problem."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line: what was looked at, how it stands, what was seen, and the cure where one is needed."""

    check: str
    state: State
    text: str
    cure: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, State.OK, text)


def warning(check: str, text: str, cure: str) -> Finding:
    """It works, and may not work well."""
    return Finding(check, State.WARNING, text, cure)


def problem(check: str, text: str, cure: str = "") -> Finding:
    """It will not work. Sentences that name their cure themselves need no other."""
    return Finding(check, State.PROBLEM, text, cure)


def has_problems(findings: Sequence[Finding]) -> bool:
    """Whether any of them is a problem."""
    return any(finding.state is State.PROBLEM for finding in findings)


def as_lines(findings: Sequence[Finding]) -> list[str]:
    """One line for each, in columns, and one that counts them."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = [
        f"{finding.state:7}  {finding.check:{width}}  {finding.text}{f'; {finding.cure}' if finding.cure else ''}"
        for finding in findings
    ]
    counts = [(state, sum(finding.state is state for finding in findings)) for state in reversed(State)]
    told = [f"{count} {state}{'s' if count > 1 and state is not State.OK else ''}" for state, count in counts if count]
    return [*lines, ", ".join(told)]
