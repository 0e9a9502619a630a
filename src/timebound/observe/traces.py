"""Makes traces of requests that are over and gives them to a collector, in a thread of its own.

Nothing of it is on a request's way: spans are made from the times that its answer carries. Traced are the requests
that were chosen when they came, those whose caller traces them, and all that got less than the full answer in time.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

from timebound.events import Answered, Events, Refused
from timebound.observe.decisions import Past
from timebound.observe.judged import is_ours, slack_s
from timebound.observe.otlp import ERROR, INTERNAL, SERVER, NotTaken, Span, attributes
from timebound.types import ModelInfo, Quality, Result, Trace

log = logging.getLogger("timebound.traces")

_MOST_WAITING = 2_048
"""Requests; what comes beyond them is counted and left out."""
_AT_ONCE = 3_000
"""Spans in one message, or hardly more: it holds the interpreter for half a millisecond while it is written."""
_IN_A_ROW = 200
"""Spans that are made before the event loop is let in, which waits for about as long. To let it in more often is
dearer: while this thread waits to go on, the loop wakes it in vain at each of its system calls.
"""
_EVERY_S = 2.0
_PAUSE_S = 0.4
"""Between messages while more waits."""
_PATIENCE_S, _LAST_PATIENCE_S = 5.0, 1.0
_AGAIN_S = (0.0, 1.0, 2.0, 4.0)
"""Pauses before each try to send the same."""
_LEAST_S = 1e-6
"""Parts that took less are left out."""


class Target(Protocol):
    """Where spans go; `otlp.Collector`."""

    url: str

    def send(self, spans: Sequence[Span], timeout_s: float) -> None: ...


class _Over(NamedTuple):
    """One request that is over; its body is not kept."""

    past: Past
    trace: Trace | None
    ended: float
    reason: str
    result: tuple[int, int, int] | None
    """Members that answered, of how many, and the size of the batch."""


class Traces:
    """Listens to answers and refusals."""

    def __init__(
        self,
        events: Events,
        target: Target,
        *,
        models: Mapping[str, ModelInfo],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._target = target
        self._models = models
        self._now = now
        self._wall = wall
        self._waiting: queue.SimpleQueue[_Over] = queue.SimpleQueue()
        self.sent = self.dropped = 0
        self._is_failing = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        events.on(Answered, self._answered)
        events.on(Refused, self._refused)

    def counts(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        return {
            "traces_sent": ("Traces that the collector took.", lambda: self.sent),
            "traces_dropped": ("Traces that it could not be given.", lambda: self.dropped),
        }

    def start(self) -> None:
        """Begin sending."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, if the collector takes it now."""
        if self._thread.is_alive():
            self._is_over.set()
            self._thread.join(timeout=2 * _LAST_PATIENCE_S)

    def _answered(self, event: Answered) -> None:
        trace, result = event.request.trace, event.result
        if trace is not None and trace.is_sampled:
            pass
        elif result.outcome.code:
            if event.status < 500:
                return  # the client's mistake
        elif result.quality is Quality.FULL and slack_s(event) >= 0:
            return
        self._put(event, trace, result)

    def _refused(self, event: Refused) -> None:
        trace = None if event.question is None else event.question.trace
        if is_ours(event) or (trace is not None and trace.is_sampled):
            self._put(event, trace, None)

    def _put(self, event: Answered | Refused, trace: Trace | None, result: Result | None) -> None:
        if self._waiting.qsize() >= _MOST_WAITING:
            self.dropped += 1
            return
        reason, of = "", None
        if result is not None:
            reason, of = result.reason, (result.members, result.of_members, result.batch_size)
        self._waiting.put(_Over(Past.of(event), trace, self._now(), reason, of))

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_EVERY_S)
            while not self._waiting.empty() and not (is_last and self._is_failing):
                self._send_some()
                self._is_over.wait(_PAUSE_S)

    def _send_some(self) -> None:
        ahead, spans, count = self._wall() - self._now(), list[Span](), 0
        try:
            while len(spans) < _AT_ONCE and not self._waiting.empty():
                count += 1
                before = len(spans) // _IN_A_ROW
                spans += self._spans(self._waiting.get(), ahead)
                if len(spans) // _IN_A_ROW > before:
                    time.sleep(0)
            self._send(spans, count)
        except Exception:
            log.exception("traces could not be made")
            self.dropped += count

    def _send(self, spans: list[Span], count: int) -> None:
        for pause_s in _AGAIN_S:
            is_last = self._is_over.wait(pause_s) if pause_s else self._is_over.is_set()
            try:
                self._target.send(spans, _LAST_PATIENCE_S if is_last else _PATIENCE_S)
            except NotTaken as failure:
                if not self._is_failing:
                    log.warning("traces are not taken: %s", failure, extra={"at": self._target.url})
                self._is_failing = True
                if failure.is_final or is_last:
                    break
            else:
                if self._is_failing:
                    log.info("traces are taken again", extra={"dropped": self.dropped})
                self._is_failing = False
                self.sent += count
                return
        self.dropped += count

    def _spans(self, over: _Over, ahead: float) -> Iterator[Span]:
        past, trace = over.past, over.trace or Trace(_id(128), "", _id(64), is_sampled=False)
        begin = over.ended - past.seconds + ahead
        status = {"code": ERROR, "message": str(past.outcome)} if past.status >= 500 else {}
        yield Span(
            trace.trace_id, trace.span, past.model, SERVER, _ns(begin), _ns(begin + past.seconds), trace.parent,
            trace.state, attributes(_facts(over)), status,
        )  # fmt: skip
        at, members = begin, self._members(past)
        for name, seconds in past.parts():
            if seconds >= _LEAST_S:
                named = members.get(name, name)
                yield Span(
                    trace.trace_id, _id(64), named, INTERNAL, _ns(at), _ns(at + seconds), trace.span, trace.state
                )
            at += seconds
        for name, from_s, seconds in past.beside():
            start, end = _ns(begin + from_s), _ns(begin + from_s + seconds)
            named = members.get(name, name)
            yield Span(trace.trace_id, _id(64), named, INTERNAL, start, end, trace.span, trace.state)

    def _members(self, past: Past) -> dict[str, str]:
        info = self._models.get(past.model)
        return {} if info is None else {f"member {place}": name for place, name in enumerate(info.member_names, 1)}


def _facts(over: _Over) -> dict[str, str | int | float | None]:
    past, run = over.past, over.past.run
    members, of_members, size = over.result or (0, 0, None)
    predicted_s = past.predicted_s if run is None else run.predicted_s
    is_answer = past.outcome in tuple(Quality)
    return {
        "timebound.model": past.model,
        "timebound.version": past.version,
        "timebound.request_id": past.id,
        "timebound.quality": str(past.outcome) if is_answer else None,
        "error.type": None if is_answer else str(past.outcome),
        "timebound.source": str(past.source),
        "timebound.reason": over.reason,
        "timebound.members": f"{members}/{of_members}" if of_members else None,
        "timebound.batch_size": size,
        "timebound.batch": None if run is None else run.id,
        "timebound.slot": None if run is None else run.slot,
        "timebound.batch_reason": None if run is None else run.reason,
        "timebound.predicted_ms": None if predicted_s is None else round(predicted_s * 1e3, 3),
        "timebound.deadline_ms": None if past.limit_s == inf else round(past.limit_s * 1e3, 3),
        "http.response.status_code": past.status,
    }


def _id(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def _ns(seconds: float) -> str:
    return str(int(seconds * 1e9))
