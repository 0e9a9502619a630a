"""Asks the understudy, for a thread that writes the history, what may be kept of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeAlias

_AT_ONCE, _BYTES_AT_ONCE = 32, 1_000_000
"""Requests in one question, and their bytes: fallbacks wait behind them. A larger one is not kept."""
_PATIENCE_S = 2.0
_PAUSE_S = 10.0
"""Nothing is asked, and so nothing kept, for so long after a question that was not answered in time."""

Asked: TypeAlias = tuple[str, bytes]
"""A model, as workers know it, and a body."""


class Helper(Protocol):
    """The understudy."""

    def redact(self, model: str, body: bytes, done: Callable[[bytes | None], None]) -> None: ...


class Redaction:
    """What cannot be told, for whatever reason, is not kept."""

    def __init__(self, helper: Helper, loop: asyncio.AbstractEventLoop) -> None:
        self._helper = helper
        self._loop = loop
        self._again_at = 0.0

    def of(self, requests: Sequence[Asked]) -> list[bytes | None]:
        """What may be kept of each; None: nothing. Waits for that, so it is not for the event loop."""
        found: list[bytes | None] = []
        for part in _parts(requests):
            found += self._ask_and_wait(part) if len(part[0][1]) <= _BYTES_AT_ONCE else [None]
        return found

    def _ask_and_wait(self, part: Sequence[Asked]) -> Sequence[bytes | None]:
        nothing = [None] * len(part)
        if self._loop.time() < self._again_at:
            return nothing
        answer: Future[list[bytes | None]] = Future()
        try:
            self._loop.call_soon_threadsafe(self._ask, part, answer)
            return answer.result(_PATIENCE_S)
        except (TimeoutError, RuntimeError):  # it stands still, or the loop is closed
            self._again_at = self._loop.time() + _PAUSE_S
            return nothing

    def _ask(self, part: Sequence[Asked], answer: Future[list[bytes | None]]) -> None:
        found: dict[int, bytes | None] = {}

        def put(place: int, kept: bytes | None) -> None:
            found[place] = kept
            if len(found) == len(part):
                answer.set_result([found[one] for one in range(len(part))])

        for place, (model, body) in enumerate(part):
            self._helper.redact(model, body, partial(put, place))


def _parts(requests: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    first = held = 0
    for place, (_, body) in enumerate(requests):
        if place > first and (place - first >= _AT_ONCE or held + len(body) > _BYTES_AT_ONCE):
            yield requests[first:place]
            first, held = place, 0
        held += len(body)
    if first < len(requests):
        yield requests[first:]
