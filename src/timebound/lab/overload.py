"""Finds a load that is more than a server can do, with a client that can ask only so fast itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TOO_LITTLE = 0.98
"""A server that answers this share of a load in time is not overloaded."""
COLLAPSED = 0.5
"""Below this share of what it answered before, calls that waited in the client are why, and not the server."""
MOST_TRIES, STEP = 5, 1.5


class Offered(NamedTuple):
    """A load, and what came of it."""

    rate: float
    useful_rps: float
    goodput: float
    is_held_back: bool
    """Calls waited in the client, as all its connections were busy."""


def overload(offer: Callable[[float], Offered], rate: float, capacity_rps: float) -> Offered:
    """More and more until it is too much for the server, or the most that the client can ask of it.

    `capacity_rps` is what clients that wait for their answers got out of it.
    """
    best: Offered | None = None
    for _ in range(MOST_TRIES):
        last = offer(rate)
        known_rps = best.useful_rps if best else capacity_rps
        if last.is_held_back and last.useful_rps < COLLAPSED * known_rps:
            if best:
                break
            rate /= STEP
        elif last.goodput >= TOO_LITTLE and last.useful_rps >= TOO_LITTLE * rate:
            best = last
            rate *= STEP
        else:
            return last
    return best or last
