"""What a batch on a device needs besides the device, before it and after it: learned, so that none comes too late."""

from __future__ import annotations

from timebound.scheduler.estimate import STRAGGLER
from timebound.scheduler.shape import CELL_RATE, UNKNOWN_S

SURE = 2.0  # mean deviations above what is expected: a batch that comes too late leaves the device idle


class Lead:
    """Seconds that batches take apart from the device, by their items: a line through what was seen, which fades."""

    __slots__ = ("_apart", "_both", "_count", "_deviation", "_items", "_seconds")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._count = 0
        self._items = self._seconds = 0.0  # means
        self._apart = self._both = 0.0  # variance of the items, and covariance with the seconds
        self._deviation = 0.0

    @property
    def is_known(self) -> bool:
        return self._count > 0

    def observe(self, items: int, seconds: float) -> None:
        """A batch of so many items took so long.

        One that takes far more met an accident (a process's first use, a pause), and is believed in part: what lasts is
        learned even so. One that takes far less than the first few says that those did.
        """
        if 0 < self._count < 1.0 / CELL_RATE and STRAGGLER * seconds + UNKNOWN_S < self._line(items):
            self._forget()
        if self._count:
            usual_s = max(UNKNOWN_S, self._line(items), self._seconds * items / self._items)
            seconds = min(seconds, STRAGGLER * usual_s)
            self._deviation += CELL_RATE * (abs(seconds - self._line(items)) - self._deviation)
        self._count += 1
        rate = max(CELL_RATE, 1.0 / self._count)
        more_items, more_s = items - self._items, seconds - self._seconds
        self._items += rate * more_items
        self._seconds += rate * more_s
        self._apart = (1.0 - rate) * (self._apart + rate * more_items * more_items)
        self._both = (1.0 - rate) * (self._both + rate * more_items * more_s)

    def seconds(self, items: int) -> float:
        """What to expect of so many items, on the safe side; 0 if nothing was seen."""
        return self._line(items) + SURE * self._deviation if self._count else 0.0

    def _line(self, items: int) -> float:
        further = items - self._items
        # Of one size only nobody knows how much is the same for all, and the next batch tells. In proportion, a hundred
        # items would be expected to take as many round trips: none could be in time, so none would run, and none tell.
        slope = 0.0
        if self._apart > 1.0:
            slope = min(max(0.0, self._both / self._apart), self._seconds / self._items)
        return self._seconds + slope * further
