"""Bodies that may have killed their worker, and those that surely did, by fingerprint.

A batch that is lost makes suspects of its items. A suspect runs alone in a worker; an answer clears it, and only what
is lost alone is held against it. So an innocent that shared a batch or a worker with a killer is never locked up.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from timebound.requests.request import Request
from timebound.store.fingerprint import of_bytes, of_json, of_sample
from timebound.types import Body, Loss

GUILTY = 6
WEIGHTS = {Loss.CRASHED: 3, Loss.HUNG: 3, Loss.KILLED: 2, Loss.DEVICE: 2, Loss.STOPPED: 0, Loss.GONE: 0}
"""What a loss alone weighs. A crash or a hang that happens twice is the item's doing; a kill may come from outside,
and a device may fail by itself."""
FIRST_LOCK_S = 60.0
LONGEST_LOCK_S = 600.0
SUSPECT_S = 60.0
"""Suspicion ends so long after the last loss."""
MOST_BODIES = 1024
OFTEN = 3
"""So many proofs within the time of a suspicion show that deadly inputs come again and again."""
_NEAR, _MOST_READ = 64, 32_768
"""Bytes by which the body of a retry may be longer or shorter, and bytes of such bodies that are read to find them."""
_LARGE = 16_384
"""Bytes of a body that is known here by parts of it: the event loop has no time for more."""


class _Record(msgspec.Struct):
    until: float
    """When it is forgotten."""
    weight: int = 0
    lock_s: float = 0.0
    locked_until: float = 0.0


class Quarantine:
    """Remembers at most `MOST_BODIES`; the oldest is forgotten first."""

    def __init__(self) -> None:
        self.records: OrderedDict[bytes, _Record] = OrderedDict()
        self._proofs: deque[float] = deque(maxlen=OFTEN)  # when the last ones were found guilty

    def __len__(self) -> int:
        return len(self.records)

    def suspect(self, mark: bytes, now: float, *, is_kin: bool = False) -> None:
        """It was in a batch that was lost, or is of a kind that kills: then one crash or hang alone proves it.

        So it does while others were found guilty just before: each proof costs a worker that others wait for.
        """
        record = self.records.setdefault(mark, _Record(now))
        if is_kin or (len(self._proofs) == OFTEN and now - self._proofs[0] < SUSPECT_S):
            record.weight = max(record.weight, GUILTY - WEIGHTS[Loss.CRASHED])
        record.until = max(record.until, now + SUSPECT_S)
        self.records.move_to_end(mark)
        while len(self.records) > MOST_BODIES:
            self.records.popitem(last=False)

    def lost_alone(self, mark: bytes, loss: Loss, now: float) -> bool:
        """It was the only item its worker had. Is it guilty now? Then it is locked up, longer each time."""
        if not WEIGHTS[loss]:
            return False
        self.suspect(mark, now)
        record = self.records[mark]
        record.weight += WEIGHTS[loss]
        if record.weight < GUILTY:
            return False
        self._proofs.append(now)
        record.lock_s = min(LONGEST_LOCK_S, 2 * record.lock_s or FIRST_LOCK_S)
        record.locked_until = now + record.lock_s
        record.until = record.locked_until + LONGEST_LOCK_S
        record.weight = GUILTY - WEIGHTS[loss]  # once out, one more such loss is enough
        return True

    def clear(self, mark: bytes) -> None:
        """It has been answered."""
        self.records.pop(mark, None)

    def is_suspect(self, mark: bytes, now: float) -> bool:
        """Whether it is to run alone."""
        record = self.records.get(mark)
        if record is not None and record.until <= now:
            del self.records[mark]
            return False
        return record is not None

    def locked_s(self, mark: bytes, now: float) -> float:
        """For how many seconds more it is not run at all."""
        record = self.records.get(mark)
        return max(0.0, record.locked_until - now) if record is not None else 0.0


def mark_of(request: Request) -> bytes:
    """What a request is known by here: its model, and its body without the fields that differ between attempts."""
    info = request.info
    if request.fingerprint:  # that of its key is the same
        return info.name.encode() + b"\0" + request.fingerprint
    if len(request.body) > _LARGE:
        body = of_sample(request.body)
    else:
        body = of_json(request.body, info.key_ignore) if info.body is Body.JSON else of_bytes(request.body)
    return info.name.encode() + b"\0" + body


def same_bodies(guilty: Request, waiting: Iterable[Request]) -> list[Request]:
    """Those that have the body of this one. Of many that nearly have it only some are read: the others wait as well."""
    mark, left, same = mark_of(guilty), _MOST_READ, []
    for other in waiting:
        is_same = other.body == guilty.body and other.info is guilty.info
        if other.fingerprint and guilty.fingerprint:
            is_same = mark_of(other) == mark
        elif not is_same and abs(len(other.body) - len(guilty.body)) <= _NEAR and len(other.body) <= left:
            left -= len(other.body)
            is_same = mark_of(other) == mark
        if is_same:
            same.append(other)
    return same
