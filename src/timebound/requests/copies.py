"""Divides a model's requests among its versions, and gives copies to those that are only compared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from timebound.catalogue import Lot
from timebound.errors import CopyLost, RequestError
from timebound.events import Compared, Events
from timebound.requests.identity import of_request
from timebound.types import Deliver, ModelInfo, Question, Result, Source

log = logging.getLogger("timebound.requests")

Submit = Callable[[Question, Deliver], Any]
_LEAST_PRIORITY = -99


class Copies:
    """Sends copies of requests to the versions that are compared, one at a time for each of them."""

    def __init__(self, submit: Submit, events: Events) -> None:
        self._submit = submit
        self._events = events
        self._busy: set[str] = set()  # versions that compute a copy

    def divide(self, question: Question, lot: Lot, deliver: Deliver) -> Deliver:
        """Choose the version that answers; who is to get its result, so that copies can follow it."""
        info = lot.draw(of_request(question.key) if question.key else question.id)  # one for all items of a request
        question.served, question.version = info.name, info.version
        if not lot.shadows:
            return deliver
        comparison = _Comparison(
            question, deliver, shadows=lot.shadows, busy=self._busy, submit=self._submit, events=self._events
        )
        return comparison.first


class _Comparison:
    """One request and its copies: they are sent when its own answer was computed, and compared with it."""

    def __init__(
        self,
        question: Question,
        deliver: Deliver,
        *,
        shadows: list[ModelInfo],
        busy: set[str],
        submit: Submit,
        events: Events,
    ) -> None:
        self._busy = busy
        self._question = question
        self._shadows = shadows
        self._submit = submit
        self._events = events
        self._deliver = deliver
        self._result: Result | None = None

    def first(self, result: Result | RequestError) -> None:
        """The answer that the client gets; then the copies go out, behind everything that waits."""
        self._deliver(result)
        if isinstance(result, RequestError) or result.source is not Source.COMPUTED:
            return
        self._result = result
        question = self._question
        for info in list(self._shadows):
            if info.name in self._busy:
                continue  # one copy at a time: a version that is slow or dies costs no more than one slot
            self._busy.add(info.name)
            copy = Question(
                f"{question.id}-shadow",
                question.model,
                question.body,
                question.arrived,
                question.deadline + info.deadline_s,  # nobody waits for it
                size=question.size,
                priority=_LEAST_PRIORITY,
                served=info.name,
                version=info.version,
                is_shadow=True,
            )
            try:
                self._submit(copy, lambda shadow, info=info: self._second(info, shadow))  # type: ignore[misc]
            except RequestError as error:
                self._second(info, error)

    def _second(self, info: ModelInfo, shadow: Result | RequestError) -> None:
        assert self._result is not None
        self._busy.discard(info.name)
        if isinstance(shadow, CopyLost) and info in self._shadows:
            self._shadows.remove(info)  # the model's own list: nobody gets copies for it any more
            log.error("version %s of %s lost a worker; it gets no more copies until a reload", info.version, info.base)
        if not isinstance(shadow, Result):
            self._events.emit(Compared(info.base, info.version, "not_computed"))
            return
        verdict = "agrees" if _is_same(self._result, shadow) else "differs"
        self._events.emit(Compared(info.base, info.version, verdict, self._result.outcome, shadow.outcome))


def _is_same(one: Result, other: Result) -> bool:
    if one.outcome.code or other.outcome.code or one.outcome.media != "application/json":
        return (one.outcome.code, one.outcome.body) == (other.outcome.code, other.outcome.body)
    return bool(msgspec.json.decode(one.outcome.body) == msgspec.json.decode(other.outcome.body))
