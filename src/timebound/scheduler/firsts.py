"""Models whose first batch of each size takes far longer than the next: they compile, tune or load something then.

Such a first time says nothing about the next (`Estimate.observe`) and is no hang (`survivors.hang_limit_s`). But if it
is long against the deadline, each new size costs answers, so only a few sizes are used: those that ran before this was
noticed, and powers of two. A plain request enters nothing of this.
"""

from __future__ import annotations

from timebound.scheduler.served import Served
from timebound.scheduler.ticket import Ticket


def cut_to_known(served: Served, tickets: list[Ticket]) -> list[Ticket]:
    """The first of these, as many as make a batch of a size that ran before, or a power of two."""
    count = len(tickets)
    if served.spec.batch_sizes:
        return tickets  # padded: the backend has met its sizes
    known = max((size for size in served.ran if size <= count), default=1)
    return tickets[: max(known, 1 << (count.bit_length() - 1))]
