"""One message a second for everybody who watches: made once, given to all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

MOST_WATCHERS = 64
_MOST_UNREAD = 5
"""Messages that may wait for one watcher; who is further behind is sent away, and comes again for the past."""


class Stream:
    """Who watches."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Queue[bytes], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether there is no place for one more."""
        return len(self._waiting) >= MOST_WATCHERS

    def tell(self, message: bytes) -> None:
        """Give everybody this message; who has not read the last ones is let go."""
        for queue in list(self._waiting):
            if queue.full():
                del self._waiting[queue]
                queue.get_nowait()
                message_or_end = b""
            else:
                message_or_end = message
            queue.put_nowait(message_or_end)

    def close(self) -> None:
        """Let everybody go."""
        for queue in self._waiting:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(b"")
        self._waiting.clear()

    async def watch(self) -> AsyncIterator[bytes]:
        """Every message from now on, until it is over."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_MOST_UNREAD)
        self._waiting[queue] = None
        try:
            while message := await queue.get():
                yield message
        finally:
            self._waiting.pop(queue, None)
