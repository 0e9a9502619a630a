"""Runs models whose `finish` yields: each piece of an answer is told at once, and all are joined at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from timebound.reply import Reply
from timebound.types import Outcome, Part
from timebound.workers.failures import item_failure
from timebound.workers.runner import CAUGHT, Prepared, Runner
from timebound.workers.telling import tell_pieces

_PACE_S = 0.002
"""Between two messages to the gateway: a generator that is faster costs it no more."""
_MOST_PARTS, _MOST_BYTES = 64, 1 << 18
"""What one message holds, and what waits for it; a generator that is faster waits."""

Tell = Callable[[dict[int, list[Part]]], list[int]]
"""Takes pieces by the items' places; gives the places of those that nobody wants more of."""


def whole(answer: Any) -> Any:
    """What a generator yields, joined: text or bytes in one, anything else as a list. Any other answer as it is."""
    return _joined(list(answer)) if isinstance(answer, Generator) else answer


def _joined(pieces: Sequence[Any]) -> Any:
    if pieces and all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if any(isinstance(piece, bytes | bytearray) for piece in pieces):
        if all(isinstance(piece, bytes | bytearray) for piece in pieces):
            return b"".join(pieces)
        raise TypeError("finish() yields bytes and other things besides; yield bytes only, or none")
    return pieces


class PiecesRunner(Runner):
    """Runs batches of a model whose `finish` is a generator; for an ensemble, together with its own runner."""

    def encode(self, answer: Any, body: bytes | memoryview = b"") -> Outcome:
        return super().encode(whole(answer), body)

    def finish_all(self, batch: Prepared, outputs: Sequence[Any]) -> list[Outcome]:
        """One piece of each in turn, so that all that were computed together come at the same pace."""
        if batch.ask is None or self.members > 1:  # an ensemble tells its better answers instead
            return super().finish_all(batch, outputs)
        tell = partial(tell_pieces, *batch.ask.args) if isinstance(batch.ask, partial) else _nobody
        each = zip(batch.places, batch.requests, outputs, batch.bodies, strict=True)
        answers = [_Answer(self, *facts) for facts in each]
        with Outbox(tell) as outbox:
            going = answers
            while going:
                going = [answer for answer in going if answer.goes_on(outbox)]
        return [answer.outcome for answer in answers]

    def part(self, piece: Any) -> Part:
        """A piece as the gateway gets it."""
        if isinstance(piece, Reply):  # as an event it would be taken for JSON
            raise TypeError(
                "finish() yields a tb.Reply; yield what is in it, or return it from a finish() without yield"
            )
        if isinstance(piece, bytes | bytearray):
            return Part("bytes", bytes(piece))
        return Part("text" if isinstance(piece, str) else "json", super().encode(piece).body)

    def is_told(self, body: bytes | memoryview) -> bool:
        """Whether its pieces mean anything before they are joined: those of tensors do not."""
        return body[:1] != self._mark


class _Answer:
    """One item's answer on its way."""

    def __init__(self, runner: PiecesRunner, place: int, request: Any, output: Any, body: bytes | memoryview) -> None:
        self._runner = runner
        self._place = place
        self._request = request
        self._output = output
        self._body = body
        self._pieces: list[Any] = []
        self._going: Generator[Any, None, Any] | None = None
        self.outcome = Outcome(b"")

    def goes_on(self, outbox: Outbox) -> bool:
        """Take one more piece; whether there may be more."""
        if isinstance(self._output, CAUGHT):
            self.outcome = self._runner.finish(self._request, self._output, self._body)
            return False
        try:
            if self._going is None:
                self._going = self._runner.model.finish(self._output, self._request)
            piece = next(self._going, _END)
            if piece is _END or self._place in outbox.unwanted:
                self._going.close()
                self.outcome = self._runner.encode(_joined(self._pieces), self._body)
                return False
            self._pieces.append(piece)
            if self._runner.is_told(self._body):
                outbox.put(self._place, self._runner.part(piece))
        except CAUGHT as error:
            self.outcome = item_failure(self._runner.name, error, "finish", self._body)
            return False
        return True


_END = object()


class Outbox:
    """Pieces on their way to the gateway: the first goes at once, those that follow closely go together."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._news = threading.Condition()
        self._parts: dict[int, list[Part]] = {}
        self._count = self._bytes = 0
        self._is_over = False
        self._error: Exception | None = None
        self.unwanted: set[int] = set()
        """Places of items that nobody wants more of."""
        self._teller = threading.Thread(target=self._run, name="pieces", daemon=True)

    def __enter__(self) -> Outbox:
        self._teller.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._news:
            self._is_over = True
            self._news.notify_all()
        self._teller.join()
        if self._error is not None:
            raise self._error

    def put(self, place: int, part: Part) -> None:
        """Send this soon; waits while there is too much."""
        with self._news:
            self._news.wait_for(self._has_room)
            self._parts.setdefault(place, []).append(part)
            self._count, self._bytes = self._count + 1, self._bytes + len(part.data)
            self._news.notify_all()

    def _has_room(self) -> bool:
        return not self._count or (self._count < _MOST_PARTS and self._bytes < _MOST_BYTES)

    def _run(self) -> None:
        while parts := self._next():
            if self._error is None:
                try:
                    self.unwanted.update(self._tell(parts))
                except Exception as error:  # the gateway is gone, as the slot hears when it is done
                    self._error = error
                    self.unwanted.update(parts)
            with self._news:
                self._news.wait_for(lambda: self._is_over, _PACE_S)

    def _next(self) -> dict[int, list[Part]]:
        with self._news:
            self._news.wait_for(lambda: self._parts or self._is_over)
            parts, self._parts = self._parts, {}
            self._count = self._bytes = 0
            self._news.notify_all()
            return parts


def _nobody(parts: dict[int, list[Part]]) -> list[int]:
    return []
