"""Where suspects run: alone in a worker, so that its death is nobody's but theirs.

One worker at a time is kept for them. It takes no other batch until they are through; the others go on as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping

Slot = Hashable
Worker = Hashable


class Trials:
    """The worker that is kept for suspects now, if there is one."""

    def __init__(self, worker_of: Callable[[Slot], Worker]) -> None:
        self._worker_of = worker_of
        self.worker: Worker | None = None
        self.missing = 0
        """Workers that were lost and are not replaced yet."""
        self._seen: set[Worker] = set()  # whose first slot came up last
        self.slot: Slot | None = None
        """Where the last suspects went."""

    def choose(self, free: Collection[Slot], running: Collection[Slot], leaving: Mapping[Slot, object]) -> Slot | None:
        """A slot of a worker that runs nothing, once there is one; until then that worker is kept from more."""
        busy = Counter(self._worker_of(slot) for slot in running)
        able = dict.fromkeys(map(self._worker_of, free))
        able |= dict.fromkeys(self._worker_of(slot) for slot in running if slot not in leaving)
        if self.worker not in able:
            self.worker = min(able, key=lambda worker: busy[worker], default=None)
        if self.worker is None or busy[self.worker]:
            return None
        self.slot = next((slot for slot in free if self._worker_of(slot) == self.worker), None)
        return self.slot

    def is_last(self, free: Collection[Slot], running: Collection[Slot]) -> bool:
        """Whether the worker that is kept is the only one there is."""
        return not {self._worker_of(slot) for slot in (*free, *running)} - {self.worker}

    def lost(self, worker: Worker) -> None:
        """A worker died or hung; another one is on its way."""
        self.missing += 1
        if worker == self.worker:
            self.end()

    def found(self, worker: Worker) -> None:
        """A worker came up."""
        if worker not in self._seen:
            self._seen = {worker}
            self.missing = max(0, self.missing - 1)

    def end(self) -> None:
        """No suspect is left: the worker is everybody's again."""
        self.worker = self.slot = None

    def open_slot(self, free: Collection[Slot]) -> Slot | None:
        """The next free slot that is not kept for suspects."""
        if self.worker is None:
            return next(iter(free), None)
        return next((slot for slot in free if self._worker_of(slot) != self.worker), None)
