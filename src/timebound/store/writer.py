"""Results on their way into Redis: some at a time, and later if Redis is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timebound.clock import Clock
from timebound.events import Events, Kept, NotKept
from timebound.store.backlog import MAX_BYTES, MAX_RESULTS, Backlog, Unwritten
from timebound.store.base import Key
from timebound.store.line import Done, Down, Line

_PORTION, _PORTION_BYTES = 100, 500_000
"""How much of the backlog is written at a time. All of it in one go would outlast the patience with the connection."""


class Writer:
    """Writes results. `send` gives one to the line; `written` hears every reply that is not `Down`, `free` of keys
    whose result cannot be written now."""

    def __init__(
        self,
        line: Line,
        clock: Clock,
        events: Events,
        *,
        send: Callable[[Done, Unwritten], None],
        written: Callable[[Unwritten, Any], None],
        free: Callable[[Key], None],
    ) -> None:
        self._line = line
        self._clock = clock
        self._events = events
        self._send = send
        self._on_written = written
        self._free = free
        self._backlog = Backlog(events)
        self._in_flight_bytes = 0

    def put(self, key: Key, value: bytes, keep_s: float) -> None:
        """Write this, now or as soon as possible."""
        self._write(Unwritten(key, value, keep_s, self._clock.now()))

    def _write(self, late: Unwritten) -> None:
        if not self._line.is_up:
            self._backlog.put(late)
        elif self._in_flight_bytes > MAX_BYTES or self._line.unanswered > MAX_RESULTS:
            self._events.emit(NotKept(late.key[0], "busy"))
            self._free(late.key)
        else:
            self._in_flight_bytes += len(late.value)
            self._send(lambda reply: self._written(late, reply), late)

    def _written(self, late: Unwritten, reply: Any) -> None:
        self._in_flight_bytes -= len(late.value)
        if isinstance(reply, Down):
            self._backlog.put(late)
        else:
            if isinstance(reply, Exception):
                self._events.emit(NotKept(late.key[0], "full" if str(reply).startswith("OOM") else "refused"))
            else:
                self._events.emit(Kept(late.key[0], self._clock.now() - late.since))
            self._on_written(late, reply)
        self.catch_up()

    def catch_up(self) -> None:
        """Write some of what waits, if there is room for it."""
        while (
            self._backlog
            and self._line.is_up
            and self._line.unanswered < _PORTION
            and self._in_flight_bytes < _PORTION_BYTES
        ):
            self._write(self._backlog.take())

    def give_up(self) -> None:
        """What still waits is lost, and counted."""
        while self._backlog:
            self._events.emit(NotKept(self._backlog.take().key[0], "stopped"))
