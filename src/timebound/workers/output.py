"""What workers print, on its way to where the gateway's own output goes; whoever reads that may stand still.

A process that writes to a full pipe stands still until somebody reads. So workers write to a pipe that is always read
here, and a thread of its own writes it on. What cannot be got rid of is dropped, and how much is told.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from contextlib import suppress

log = logging.getLogger("timebound.workers")

_MOST_BYTES = 4 << 20
"""What is held of each stream for a reader that is slow."""
_CHUNK = 65_536
_ATOMIC = 4096
"""Linux writes so much to a pipe in one piece, without lines of others in it."""
_FAREWELL_S = 1.0


class Outputs:
    """Where workers' stdout and stderr go."""

    def __init__(self) -> None:
        self._relays: list[Relay] = []
        self.numbers: dict[int, int] = {}
        """By the worker's file, ours that it gets; those that cannot stand still it shares with us."""

    def open(self) -> None:
        """Be ready for workers."""
        for number in (1, 2):
            with suppress(OSError):  # a closed one is left closed
                if may_stand_still(number):
                    relay = Relay(number)
                    self._relays.append(relay)
                    self.numbers[number] = relay.entrance

    def close(self) -> None:
        """Nobody prints any more: write what is left, if that can be done soon."""
        relays, self._relays, self.numbers = self._relays, [], {}
        for relay in relays:
            os.close(relay.entrance)
        for relay in relays:
            relay.writer.join(_FAREWELL_S)


def may_stand_still(number: int) -> bool:
    """Whether writing to this file can wait for somebody: a pipe, a socket, a terminal; not what lies on a disk."""
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)


class Relay:
    """A pipe whose end is always read, and written on to a file of this process, until its entrance is closed."""

    def __init__(self, target: int) -> None:
        self._target = os.dup(target)
        self._exit, self.entrance = os.pipe()
        self._news = threading.Condition()
        self._held: list[bytes] = []
        self._held_bytes = self._dropped = 0
        self._is_over = False
        self.writer = threading.Thread(target=self._write, name="output-out", daemon=True)
        self.writer.start()
        threading.Thread(target=self._read, name="output-in", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._exit, _CHUNK):
            data = rest + piece
            # A full chunk ends anywhere: keep the line that is cut for the next one.
            end = data.rfind(b"\n") + 1 if len(piece) == _CHUNK and len(data) < 2 * _CHUNK else len(data)
            data, rest = data[:end], data[end:]
            self._hold(data)
        self._hold(rest)
        os.close(self._exit)
        with self._news:
            self._is_over = True
            self._news.notify()

    def _hold(self, data: bytes) -> None:
        with self._news:
            if self._held_bytes + len(data) > _MOST_BYTES:
                self._dropped += len(data)
            elif data:
                self._held.append(data)
                self._held_bytes += len(data)
                self._news.notify()

    def _write(self) -> None:
        while data := self._next():
            with suppress(OSError):  # nobody reads it any more
                for piece in _pieces(data):
                    os.write(self._target, piece)
            with self._news:
                self._held_bytes -= len(data)
                dropped, self._dropped = (self._dropped, 0) if not self._held else (0, self._dropped)
            if dropped:
                log.warning("what workers printed was dropped: nobody read it", extra={"bytes": dropped})
        os.close(self._target)

    def _next(self) -> bytes:
        with self._news:
            self._news.wait_for(lambda: self._held or self._is_over)
            return self._held.pop(0) if self._held else b""


def _pieces(data: bytes) -> list[bytes]:
    """Whole lines, as many together as go in one piece; a longer line is cut."""
    pieces, start = [], 0
    while start < len(data):
        end = min(start + _ATOMIC, len(data))
        if end < len(data):
            end = data.rfind(b"\n", start, end) + 1 or end
        pieces.append(data[start:end])
        start = end
    return pieces
