"""A request's life, in one object: from the moment it is accepted until nobody waits for it and nothing runs for it.

    ACCEPTED ---- it has a key ----> ASKING ---- another server computes it ----> ELSEWHERE
        |                             |  |                                         |    |
        | no key                      |  '---- it is finished: DONE                |    '-- its result came: DONE
        |             it is ours to compute                    that server died    |
        '------------------+----------'-------------------------------------------'
                           |
                           |---- the model has a `fetch` -------> FETCHING
                           |---- or a `size` of its own --------> SIZING
                           |                                         |
                           v                                         |
                         QUEUED <------------------------------------'
                          |  ^ |
                a slot is |  | '-- too late, or too much waits: given up ------.
                     free v  | its worker was lost                             v
                         RUNNING ---- the members that are done are enough ---> FALLING, if the model has a fallback
                           |                                                   |
                           '---- the answer is there ---> DONE <---------------'

The scheduler sees the same object as a `Ticket`: it sets QUEUED and RUNNING, and ACCEPTED when it lets a request go;
`dispatcher.py` and `answers.py` say at once what becomes of that. A request whose clients have all left stays in its
phase if it has a key, behind everybody who waits: a retry may come for it.
"""

from __future__ import annotations

from math import inf
from random import random
from typing import Any

import msgspec

from timebound.scheduler.ticket import Phase, Ticket
from timebound.types import Deliver, ModelInfo, Quality, Question, Result

__all__ = ["Attempt", "Phase", "Request"]


class Attempt(msgspec.Struct, eq=False):
    """One client waiting for a request; the first asked for it, later ones joined."""

    number: int
    question: Question
    deliver: Deliver
    request: Request
    has_joined: bool = False
    guard_at: float = inf
    """When it is given what there is."""
    is_last_chance: bool = False
    """Its fallback has been asked for; the next time the guard fires there is nothing left but an error."""


class Request(Ticket, kw_only=True, eq=False):
    """An accepted request, and those who wait for it."""

    info: ModelInfo
    body: bytes
    key: tuple[str, str] | None = None
    fingerprint: bytes = b""
    attempts: list[Attempt] = []  # noqa: RUF012 - each has a list of its own
    so_far: Result | None = None
    """The answer of the members that are done: an error of a later one takes nothing from it."""
    pieces: Any = None
    """Those of its answer that have come: the `Pieces` of `progress.py`."""
    owns_key: bool = False
    """Whether this gateway computes it on behalf of the key; then the store must be told what came of it."""
    left_by: str | None = None
    """Whose it was, while nobody waits for it: the last client to leave."""
    kept: Quality | None = None
    """What the store has been given of it."""
    blame: float = 0.0
    traits: Any = ()
    """For `kin.py`: its share in the loss of batches, 1 if proven guilty; those of its traits that were known."""
    is_copy: bool = False
    """Whether its answer is only compared with another's."""
    is_fetched: bool = False
    """Whether `body` is what was fetched for it, with the body that came."""
    hold: Any = None
    """See `Question.hold`: the body may outlive its clients, while a retry may come."""

    def better(self, result: Result) -> None:
        """A better answer than there was: it is kept, and told to those who want to see each."""
        self.so_far = result
        for attempt in self.attempts:
            if attempt.question.follow is not None and not attempt.has_joined:
                attempt.question.follow(attempt.question, result)

    @property
    def best(self) -> Result | None:
        """The answer of the members that are done, or the pieces that have come: to be given if time runs out."""
        return self.so_far if self.pieces is None else self.pieces.joined()

    @property
    def is_followed(self) -> bool:
        """Whether anyone who waits wants to see each better answer."""
        return any(each.question.follow is not None and not each.has_joined for each in self.attempts)

    @property
    def wants_votes(self) -> bool:
        """Whether anyone who waits asked for the members' own answers, or the history does, for some."""
        for attempt in self.attempts:
            if attempt.question.wants_votes:
                return True
        return self.info.keep_votes > 0 and not self.is_copy and random() < self.info.keep_votes
