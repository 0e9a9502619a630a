"""One message a second for everybody who watches: made once, given to all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

MOST_WATCHERS = 64
_MOST_UNREAD = 5
"""Messages that may wait for one watcher; who is further behind is sent away, and comes again for the past."""
_BEHIND = 2
"""Messages that wait for one who reads no more; of one who reads there is one at most."""


class _Watcher(asyncio.Queue[bytes]):
    """Messages for one page, and by whose pass it came; empty: the operator's own."""

    def __init__(self, whose: bytes) -> None:
        super().__init__(_MOST_UNREAD)
        self.whose = whose


class Stream:
    """Who watches."""

    def __init__(self) -> None:
        self._waiting: dict[_Watcher, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, whose: bytes = b"") -> bool:
        """Whether there is a place for one more of this holder of a pass, or of the operator; if need be another's.

        Who does not read goes first, then the oldest of a holder who has more places; for the operator, of any.
        """
        if len(self) < MOST_WATCHERS:
            return True
        behind = max(self._waiting, key=_Watcher.qsize)
        if behind.qsize() >= _BEHIND:
            self._let_go(behind)
            return True
        places = Counter(each.whose for each in self._waiting)
        others = {other: count for other, count in places.items() if other not in (b"", whose)}
        most = max(others, key=others.__getitem__, default=b"")
        is_fair = bool(others) and (not whose or others[most] > places[whose] + 1)
        if is_fair:
            self._let_go(next(each for each in self._waiting if each.whose == most))
        return is_fair

    def tell(self, message: bytes) -> None:
        """Give everybody this message; who has not read the last ones is let go."""
        for watcher in list(self._waiting):
            if watcher.full():
                self._let_go(watcher)
            else:
                watcher.put_nowait(message)

    def close(self) -> None:
        """Let everybody go."""
        for watcher in list(self._waiting):
            self._let_go(watcher)

    def _let_go(self, watcher: _Watcher) -> None:
        del self._waiting[watcher]
        if watcher.full():
            watcher.get_nowait()
        watcher.put_nowait(b"")

    async def watch(self, whose: bytes = b"") -> AsyncIterator[bytes]:
        """Every message from now on, until it is over."""
        watcher = _Watcher(whose)
        self._waiting[watcher] = None
        try:
            while message := await watcher.get():
                yield message
        finally:
            self._waiting.pop(watcher, None)
