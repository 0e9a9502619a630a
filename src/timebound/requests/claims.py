"""Asks the store before a request with a key is computed, and tells it afterwards what came of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from timebound.clock import Wall
from timebound.errors import KeyReused, RequestError
from timebound.requests.request import Phase, Request
from timebound.store.base import Claim, Kind, Store, Stored
from timebound.types import Quality, Result, Source, Timing


class Claims:
    """The keys this gateway computes."""

    def __init__(self, store: Store, wall: Wall) -> None:
        self._store = store
        self._wall = wall

    def ask(
        self,
        request: Request,
        *,
        compute: Callable[[Request], None],
        give: Callable[[Request, Result | RequestError], None],
    ) -> None:
        """Have the request computed, or given what the store knows; at once, or when the store has answered."""
        assert request.key is not None
        request.phase = Phase.ASKING

        def settle(claim: Claim) -> None:
            if claim.kind is Kind.JOINED:
                request.phase = Phase.ELSEWHERE
            elif claim.kind is Kind.RESULT:
                assert claim.stored is not None
                give(request, claim.stored.result)
            elif claim.kind is Kind.CONFLICT:
                give(request, KeyReused())
            else:
                request.owns_key = True
                request.phase = Phase.ACCEPTED
                if request.attempts:
                    compute(request)
                else:  # everybody left while the store was asked
                    self.release(request)

        self._store.claim(request.key, request.fingerprint, settle)

    def keep(self, request: Request, result: Result) -> None:
        """Keep a full or partial result; the claim is over. A full one may follow a partial one."""
        assert request.key is not None
        if request.kept is Quality.FULL or request.kept is result.quality:
            return
        request.kept = result.quality
        replayed = msgspec.structs.replace(result, source=Source.STORED, queue_s=0.0, timing=Timing(), votes="")
        stored = Stored(request.fingerprint, replayed, self._wall())
        self._store.complete(request.key, stored, request.info.keep_s)

    def settle(self, request: Request, result: Result | RequestError) -> None:
        """A request whose key is ours has come to its end: its result is kept, or others may try."""
        if is_worth_keeping(result):
            assert isinstance(result, Result)
            self.keep(request, result)
        self.release(request)

    def release(self, request: Request) -> None:
        """Nothing more comes of this claim than what there is."""
        if not request.owns_key:
            return
        if request.best is not None:
            self.keep(request, request.best)
        if request.kept is None:
            assert request.key is not None
            self._store.abandon(request.key)
        request.owns_key = False


def is_worth_keeping(result: Result | RequestError) -> bool:
    """Whether a retry should get this very answer: an error or a fallback may be bettered, a model's answer not."""
    return isinstance(result, Result) and not result.outcome.code and result.quality is not Quality.FALLBACK
