"""Answers packed by gzip or deflate for clients that take them so, if there is time for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timebound.clock import Clock
from timebound.http.flow import Respond
from timebound.tensors.packing import packed

_WORTH = 1_000
"""Bytes below which there is nothing to save."""
_LIGHT = 16_000
"""Bytes that are packed in a tenth of a millisecond; more goes to a thread, and zlib lets go of the lock there."""
_KEPT_FREE_S = 0.01
"""Before the deadline an answer that is not packed yet goes as it is."""


def packing_as(encoding: str | None) -> Callable[[Respond, float, Clock], Respond] | None:
    """What packs an answer on its way, if its client takes one that is packed."""
    if encoding is None:
        return None
    return lambda respond, deadline, clock: Packed(respond, encoding, deadline, clock).respond


class Packed:
    """Responds with a packed body, once; the head's `content-length` is the first of its kind and is replaced."""

    def __init__(self, respond: Respond, encoding: str, deadline: float, clock: Clock) -> None:
        self._respond = respond
        self._encoding = encoding
        self._deadline = deadline
        self._clock = clock
        self._is_sent = False

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """Called with a whole answer."""
        left_s = self._deadline - _KEPT_FREE_S - self._clock.now()
        if status != 200 or len(body) < _WORTH or left_s <= 0:
            self._respond(status, head, body)
        elif len(body) <= _LIGHT:
            self._respond(status, *self._as_packed(head, body, packed(body, self._encoding)))
        else:
            self._race(status, head, body, left_s)

    def _race(self, status: int, head: bytes, body: bytes, left_s: float) -> None:
        def send(*answer: bytes) -> None:
            if not self._is_sent:
                self._is_sent = True
                timer.cancel()
                self._respond(status, *answer)

        def done(packing: asyncio.Future[bytes]) -> None:
            send(*self._as_packed(head, body, packing.result()))

        loop = asyncio.get_running_loop()
        timer = loop.call_later(left_s, send, head, body)
        loop.run_in_executor(None, packed, body, self._encoding).add_done_callback(done)

    def _as_packed(self, head: bytes, body: bytes, small: bytes) -> tuple[bytes, bytes]:
        head = head.replace(b"content-length: %d\r\n" % len(body), b"content-length: %d\r\n" % len(small), 1)
        return head + b"content-encoding: %b\r\n" % self._encoding.encode(), small
