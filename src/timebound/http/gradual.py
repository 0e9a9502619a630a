"""Large answers, written a piece at a time: between two pieces others have their turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from timebound.clock import Clock
from timebound.errors import DeadlineMissed, RequestError
from timebound.http.surfaces.base import Reply
from timebound.tensors.pieces import Steps
from timebound.types import Result

HEAVY = 100_000
"""Bytes of answers that may take longer than a millisecond to write in a protocol that changes them."""
_KEPT_FREE_S = 0.002
"""Before the deadline an answer that is not written yet is a miss."""


class Answering(Protocol):
    """A request whose results are there."""

    is_over: bool

    def answer(self, reply: Reply) -> None: ...
    def refuse(self, error: RequestError) -> None: ...
    def broken(self) -> Reply: ...


def is_heavy(results: Sequence[Result | RequestError]) -> bool:
    """Whether there is so much to write that it is done in steps."""
    return sum([len(result.outcome.body) for result in results if isinstance(result, Result)]) > HEAVY


def write_in_steps(taken: Answering, steps: Steps[Reply], deadline: float, clock: Clock) -> None:
    """Write some more of a large answer; others have their turn before the next step."""
    if taken.is_over:
        return
    if clock.now() >= deadline - _KEPT_FREE_S:
        taken.refuse(DeadlineMissed("the deadline came while the answer was written"))
        return
    try:
        next(steps)
    except StopIteration as end:
        taken.answer(end.value)
    except Exception:
        taken.answer(taken.broken())
    else:
        asyncio.get_running_loop().call_soon(write_in_steps, taken, steps, deadline, clock)
