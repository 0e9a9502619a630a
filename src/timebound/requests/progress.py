"""What those who wait get to see while a batch runs: better answers of an ensemble, and pieces of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from timebound.requests.floor import Sent
from timebound.requests.request import Attempt, Request
from timebound.scheduler.ticket import Batch
from timebound.types import Outcome, Part, Quality, Result, Run, Source

MOST_BYTES = 64 << 20
"""Of the pieces of one answer, which are kept for whoever gets it whole: an answer that has more is an error."""
SMALL = 16_384
"""Bytes of pieces that are not worth counting, as for bodies."""
_PART_BYTES = 100
"""What a piece costs besides its data: the objects around it."""


def wishes(batch: Batch, requests: Sequence[Request]) -> list[int]:
    """Places of the requests that want the members' votes. Where somebody follows, members run one by one and tell."""
    if any(request.is_followed for request in requests):
        batch.quiet_s = 0.0
        batch.is_at_once = batch.is_at_once and batch.server is not None  # a device has them together anyway
    return [place for place, each in enumerate(requests) if each.wants_votes]


class Pieces:
    """The pieces of one request's answer that have come.

    If the worker is lost and another one computes it, the same pieces come again: those who have them are told only
    what is new. Where they differ, `strays` says so. `hold` stands for their memory, see `admission.Held.hold`.
    """

    def __init__(self, sent: Sent, request: Request, hold: Any = None) -> None:
        self._run: Run = sent.run
        self._hold = hold
        self._parts: list[Part] = []
        self.bytes = 0
        """What all of them cost."""
        self._at = 0
        self._whole: Result | None = None
        facts = (Quality.PARTIAL, Source.COMPUTED, 1, 1, len(sent.requests), sent.run.started - request.arrived)
        self._result = Result(Outcome(b""), *facts, version=request.info.version, run=sent.run)

    def joined(self) -> Result:
        """An answer of what has come."""
        if self._whole is None:
            self._whole = msgspec.structs.replace(self._result, outcome=_joined(self._parts))
            if self._hold is not None and self.bytes > SMALL:
                self._hold.stand_for(self.bytes + len(self._whole.outcome.body))  # there is none without it
        return self._whole

    def strays(self, sent: Sent, parts: Sequence[Part]) -> bool:
        """Whether these are other pieces than those that came before from a worker that was lost."""
        if sent.run is not self._run:
            self._run, self._at = sent.run, 0
        known = self._parts[self._at : self._at + len(parts)]
        return known != list(parts[: len(known)])

    def begin_again(self) -> None:
        """What came so far is of no use."""
        del self._parts[self._at :]
        self.bytes = _bytes_of(self._parts)

    def add(self, parts: Sequence[Part]) -> list[Part]:
        """Those of them that are new."""
        new = list(parts[len(self._parts) - self._at :])
        self._at += len(parts)
        self._parts += new
        self.bytes += _bytes_of(new)
        self._whole = None
        return new

    def has_room(self) -> bool:
        """Whether there is room for all of them in the memory of the server; they are counted if so."""
        return self._hold is None or self.bytes <= SMALL or bool(self._hold.reach(self.bytes))


def followers(request: Request) -> list[Attempt]:
    """Those who wait for it and want to see its pieces."""
    return [each for each in request.attempts if each.question.follow is not None and not each.has_joined]


def tell(request: Request, parts: list[Part]) -> None:
    """Show new pieces to those who want to see them."""
    for attempt in followers(request) if parts else ():
        follow = attempt.question.follow
        assert follow is not None
        follow(attempt.question, parts)


def _bytes_of(parts: Sequence[Part]) -> int:
    return sum(len(part.data) + _PART_BYTES for part in parts)


def _joined(parts: Sequence[Part]) -> Outcome:
    kinds = {part.kind for part in parts}
    if kinds == {"bytes"}:
        return Outcome(b"".join(part.data for part in parts), media="application/octet-stream")
    if kinds == {"text"}:  # each is the JSON of a text
        return Outcome(b'"' + b"".join(part.data[1:-1] for part in parts) + b'"')
    return Outcome(b"[" + b",".join(part.data for part in parts if part.kind != "bytes") + b"]")
