"""Asks the store before a request with a key is computed, and tells it afterwards what came of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from timebound.clock import Wall
from timebound.errors import KeyReused, RequestError
from timebound.requests.pending import Pending
from timebound.store.base import Claim, Kind, Store, Stored
from timebound.types import Quality, Question, Result, Source, Timing


class Claims:
    """The keys this gateway computes."""

    def __init__(self, store: Store, wall: Wall) -> None:
        self._store = store
        self._wall = wall

    def ask(
        self,
        pending: Pending,
        request: Question,
        *,
        compute: Callable[[Pending], None],
        give: Callable[[Pending, Result | RequestError], None],
    ) -> None:
        """Have the request computed, or given what the store knows; at once, or when the store has answered."""
        if pending.key is None:
            compute(pending)
            return

        def settle(claim: Claim) -> None:
            if claim.kind is Kind.JOINED:
                pending.is_elsewhere = True
            elif claim.kind is Kind.RESULT:
                assert claim.stored is not None
                give(pending, claim.stored.result)
            elif claim.kind is Kind.CONFLICT:
                give(pending, KeyReused())
            else:
                pending.is_claimed = True
                pending.is_elsewhere = False
                if pending.attempts:
                    compute(pending)
                else:  # everybody left while the store was asked
                    self.release(pending)

        self._store.claim(pending.key, request.fingerprint, settle)

    def keep(self, pending: Pending, result: Result) -> None:
        """Keep a full or partial result; the claim is over. A full one may follow a partial one."""
        assert pending.key is not None
        if pending.kept is Quality.FULL or pending.kept is result.quality:
            return
        pending.kept = result.quality
        replayed = msgspec.structs.replace(result, source=Source.STORED, queue_s=0.0, timing=Timing(), votes="")
        stored = Stored(pending.fingerprint, replayed, self._wall())
        self._store.complete(pending.key, stored, pending.info.keep_s)

    def settle(self, pending: Pending, result: Result | RequestError) -> None:
        """A claimed request has come to its end: its result is kept, or others may try."""
        if not pending.is_claimed:
            return
        if is_worth_keeping(result):
            assert isinstance(result, Result)
            self.keep(pending, result)
        self.release(pending)

    def release(self, pending: Pending) -> None:
        """Nothing more comes of this claim than what there is."""
        if pending.is_claimed and pending.best is not None:
            self.keep(pending, pending.best)
        if pending.is_claimed and pending.kept is None:
            assert pending.key is not None
            self._store.abandon(pending.key)
        pending.is_claimed = False


def is_worth_keeping(result: Result | RequestError) -> bool:
    """Whether a retry should get this very answer: an error or a fallback may be bettered, a model's answer not."""
    return isinstance(result, Result) and not result.outcome.code and result.quality is not Quality.FALLBACK
