"""When to ask again, and whom: decided from times and failures alone, without a clock, a socket or a random number.

A request has a key, so sending it again is the same request: the server joins the attempts, or gives the answer it
kept. That makes it safe after anything. It is useful only where another answer may come, and there is time for one:

| what happened | what follows |
|---|---|
| no connection, a broken one, no answer within `attempt_timeout` | the next server at once; the same after a pause |
| 429 or 503 (or 502 from a proxy) | the next server at once; the same after its Retry-After, or a pause |
| anything else, also a 503 that a model archive's handler raised | the end |

A pause doubles with every failure of its server. Of all pauses between half and the whole is taken, at random, and to a
Retry-After up to a tenth is added: clients that failed together do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
_DOUBLINGS = 10
"""After so many a pause has its full length; a float has an end."""
LEAST_S = 0.005
"""Time that must be left for an attempt: less is over before an answer can be here."""
RETRIES_WITHOUT_DEADLINE = 3
RETRIED = frozenset({429, 502, 503})
"""Statuses after which the same request may be answered. 504 is not among them: it says that the time is up."""
DOWN_S = 1.0
"""How long a server that broke a connection is asked after the others; whoever meets it down again prolongs that."""

Random = Callable[[], float]
"""A number from 0 up to 1."""


class Plan:
    """One call's way among `servers`, given in order of preference by their places."""

    def __init__(self, servers: Sequence[int], deadline: float, retries: int | None, random: Random) -> None:
        self._not_before = dict.fromkeys(servers, -inf)
        self._failures = dict.fromkeys(servers, 0)
        self._deadline = deadline
        self._left = inf if retries is None else retries + 1
        self._random = random

    def next(self, now: float) -> tuple[int, float] | None:
        """Whom to ask, and when, at `now` or later; None if there is no use in asking once more."""
        place = min(self._not_before, key=lambda place: max(now, self._not_before[place]))  # the first of equals
        at = max(now, self._not_before[place])
        if self._left < 1 or at + LEAST_S > self._deadline:
            return None
        self._left -= 1
        return place, at

    def failed(self, place: int, now: float, retry_after: float | None = None) -> None:
        """Note that a server gave no answer, and what it said about coming back."""
        chance = self._random()
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures[place], _DOUBLINGS))
        told = (retry_after or 0.0) * (1.0 + chance / 10.0)  # "0" from a proxy must not make us hammer it
        self._failures[place] += 1
        self._not_before[place] = now + max(told, pause * (1.0 + chance) / 2.0)


class Standing:
    """What all calls of a client know of its servers: who was found down lately. Safe between threads."""

    def __init__(self, count: int) -> None:
        self._down_until = [-inf] * count  # each entry is written whole; who reads an old one only asks in vain

    def order(self, preferred: Sequence[int], now: float) -> list[int]:
        """The servers as preferred, those that were down lately last."""
        return sorted(preferred, key=lambda place: self._down_until[place] > now)

    def met(self, place: int, now: float, *, is_down: bool) -> None:
        """Note how a server was found."""
        self._down_until[place] = now + DOWN_S if is_down else -inf
