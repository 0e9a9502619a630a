"""What this gateway computes under which keys, and when a claim is needed no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from timebound.store.base import Key


class Task(msgspec.Struct):
    """For how many of its own requests this gateway computes a key, and how many more are asking Redis for it now.

    Two requests of one gateway can have the same key when the client of the first has left. The claim in Redis is the
    gateway's, so it is freed only when none of them needs it.
    """

    fingerprint: bytes
    holders: int = 0
    asking: int = 0
    is_ours: bool = False
    """Whether the claim in Redis may be ours."""


class Work:
    """All that is computed here; `free` is called with each claim that is needed no more."""

    def __init__(self, free: Callable[[Key], None]) -> None:
        self._free = free
        self._tasks: dict[Key, Task] = {}

    def __iter__(self) -> Iterator[tuple[Key, bytes]]:
        """The keys and their fingerprints."""
        return iter([(key, task.fingerprint) for key, task in self._tasks.items()])

    def is_held(self, key: Key) -> bool:
        """Whether a request of this gateway's computes this key."""
        return key in self._tasks and self._tasks[key].holders > 0

    def hold(self, key: Key, fingerprint: bytes) -> None:
        """One more request of this gateway's computes this key."""
        task = self._tasks.setdefault(key, Task(fingerprint))
        task.holders += 1
        task.is_ours = True

    def asks(self, key: Key, fingerprint: bytes) -> Task:
        """One more request asks for this key; `asked` comes after, when Redis has said whose it is."""
        task = self._tasks.setdefault(key, Task(fingerprint))
        task.asking += 1
        return task

    def asked(self, key: Key, task: Task) -> None:
        """Free the claim if the one who asked was the last that could need it."""
        if self._tasks.get(key) is task:  # else it was finished meanwhile
            self._let_go(key, task)

    def finish(self, key: Key) -> None:
        """It has a result; the claim goes with that."""
        self._tasks.pop(key, None)

    def leave(self, key: Key) -> None:
        """A request computes this key no more, and nothing came of it."""
        task = self._tasks.get(key)
        if task is None:
            self._free(key)
            return
        task.holders = max(0, task.holders - 1)
        self._let_go(key, task)

    def stop(self) -> None:
        """Free every claim."""
        for key in list(self._tasks):
            del self._tasks[key]
            self._free(key)

    def _let_go(self, key: Key, task: Task) -> None:
        if task.holders == 0 and task.asking == 0:
            del self._tasks[key]
            if task.is_ours:
                self._free(key)
