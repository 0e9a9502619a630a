"""Writes what became of every request into files, in a thread of its own; requests pay for a place in a queue."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EACCES, EDQUOT, ENOSPC
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from timebound.errors import SetupError
from timebound.events import Answered, Events, Refused
from timebound.observe.judged import is_in_time
from timebound.observe.ledger import Ledger
from timebound.observe.told import Told, field_of, has_disagreed, told_by, without
from timebound.types import ModelInfo, Question

log = logging.getLogger("timebound.history")

_MOST_WAITING = 50_000
_MOST_WAITING_BYTES = 64_000_000
"""Of inputs and answers that are to be written."""
_EVERY_S = 0.25
_IN_A_ROW = 64
"""Rows that are made before the event loop is let in, which waits for half a millisecond."""
_TRY_AGAIN_S = 5.0
_NOTHING = Told()

Redact: TypeAlias = Callable[[list[tuple[str, bytes]]], list[bytes | None]]
"""Of requests to these models what may be kept, None for nothing; it may wait for that."""


def check_folder(folder: Path) -> None:
    """Make the folder; raise `SetupError` if no history can be written to it. A full disk may get room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT):
            why = "it is a file" if folder.is_file() else error.strerror
            raise SetupError(f"no history can be written to {folder}: {why}; check --history") from None


class _Said(NamedTuple):
    """Somebody's word about an answer."""

    row: tuple[Any, ...]


class Journal:
    """Listens to answers and refusals. What cannot be written, or comes too fast, is counted and left out."""

    def __init__(
        self,
        events: Events,
        folder: Path,
        *,
        most_bytes: int,
        most_s: float,
        models: Mapping[str, ModelInfo],
        now: Callable[[], float],
        wall: Callable[[], float],
        is_heavy: Callable[[bytes], bool] = lambda body: False,
        redact: Redact = lambda requests: [None] * len(requests),
    ) -> None:
        self.folder = folder
        self._ledger = Ledger(folder, most_bytes=most_bytes, most_s=most_s)
        self._models = models
        self._now = now
        self._wall = wall
        self._is_heavy = is_heavy
        """Whether to look into a JSON body takes long: it holds up the event loop, though it is done in the thread."""
        self._redact = redact
        self._waiting: queue.SimpleQueue[Answered | Refused | _Said | None] = queue.SimpleQueue()
        self._put_bytes = self._taken_bytes = 0  # by one thread each
        self.dropped = 0
        """Outcomes that are in no file."""
        self.written = 0
        self._is_broken = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        events.on(Answered, self._put)
        events.on(Refused, self._put)

    def counts(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        return {
            "history_written": ("Outcomes that are in the history's files.", lambda: self.written),
            "history_dropped": ("Outcomes that could not be written.", lambda: self.dropped),
            "history_set_aside": ("Damaged files for which new ones were begun.", lambda: self._ledger.set_aside),
        }

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is left."""
        if self._thread.is_alive():
            self._is_over = True
            self._waiting.put(None)
            self._thread.join(timeout=10)

    def say(self, row: tuple[Any, ...]) -> bool:
        """Note a verdict: model, key, verdict, label, time, client. False if too much waits to be written."""
        has_room = self._waiting.qsize() < _MOST_WAITING
        if has_room:
            self._waiting.put(_Said(row))
        return has_room

    def _put(self, event: Answered | Refused) -> None:
        held = self._put_bytes - self._taken_bytes
        if self._waiting.qsize() >= _MOST_WAITING or held >= _MOST_WAITING_BYTES:
            self.dropped += 1
            return
        self._put_bytes += _bytes_of(event)
        self._waiting.put(event)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        with suppress(Exception):  # the first outcome will say so, too
            self._ledger.check()
        is_over = False
        while not is_over:
            events: list[Answered | Refused] = []
            said: list[tuple[Any, ...]] = []
            first = self._waiting.get()
            while True:
                if first is None:
                    is_over = True
                elif isinstance(first, _Said):
                    said.append(first.row)
                else:
                    events.append(first)
                    self._taken_bytes += _bytes_of(first)
                if self._waiting.empty() or len(events) >= _MOST_WAITING // 10:
                    break
                first = self._waiting.get()
            if events or said:
                self._write(events, said)
            if not is_over:
                # What comes meanwhile goes into one transaction.
                time.sleep(_TRY_AGAIN_S if self._is_broken else _EVERY_S)
        self._ledger.close()

    def _write(self, events: list[Answered | Refused], said: list[tuple[Any, ...]]) -> None:
        now, before = self._wall(), self._ledger.kept
        try:
            if events:
                told = self._told(events, now)
                self._ledger.write([row for _, row in told], _minutes(told), now)
            if said:
                self._ledger.write_feedback(said)
        except Exception as error:  # whatever it is, the thread goes on and tries again
            if not self._is_broken:
                log.error("the history cannot be written, and answers go on without it: %s", error)
            self._is_broken = True
            self._ledger.give_up()
        else:
            if self._is_broken:
                log.info("the history is written again", extra={"dropped": self.dropped})
            self._is_broken = False
        kept = self._ledger.kept - before
        self.written += kept
        self.dropped += len(events) - kept

    def _told(self, events: list[Answered | Refused], now: float) -> list[tuple[Answered | Refused, tuple[Any, ...]]]:
        """Each with its row; one that has none, whatever was answered, does not hold up the others."""
        ahead, told = now - self._now(), []
        for first in range(0, len(events), _IN_A_ROW):
            some = events[first : first + _IN_A_ROW]
            redacted = self._redacted(some)
            for place, event in enumerate(some):
                try:
                    told.append((event, self._row(event, now, ahead, redacted.get(place))))
                except Exception:
                    log.exception("an outcome could not be told")
            time.sleep(0)
        return told

    def _redacted(self, events: list[Answered | Refused]) -> dict[int, bytes | None]:
        """By place, what may be kept of those whose model says that itself; nobody can be asked while it stops."""
        asked: dict[int, tuple[str, bytes]] = {}
        for place, event in enumerate(events):
            question = event.request if isinstance(event, Answered) else event.question
            info = None if question is None else self._info(question)
            if question is not None and info is not None and info.has_redact:
                asked[place] = question.served or question.model, question.body
        return dict(zip(asked, self._redact([*asked.values()]), strict=True)) if asked and not self._is_over else {}

    def _info(self, question: Question) -> ModelInfo | None:
        return self._models.get(question.served or question.model) or self._models.get(question.model)

    def _row(self, event: Answered | Refused, now: float, ahead: float, redacted: bytes | None) -> tuple[Any, ...]:
        ms = round(event.seconds * 1e3, 3)
        if isinstance(event, Refused):
            arrived = now - event.seconds if event.question is None else event.question.arrived + ahead
            return self._refused(event, arrived, ms, redacted)
        question, result = event.request, event.result
        info = self._info(question)
        outcome, timing, run = result.outcome, result.timing, result.run
        label_field = None if info is None else info.label_field
        told = _NOTHING if outcome.code else told_by(self._left(outcome.body, info), outcome.media, label_field)
        return (
            question.arrived + ahead, question.id, question.model, result.version or question.version,
            question.key or "",
            question.client, event.status, outcome.code, "" if outcome.code else result.quality.value,
            result.source.value, result.reason, result.members, result.of_members, ms,
            round((question.deadline - question.arrived) * 1e3, 3), round(result.queue_s * 1e3, 3),
            round(timing.prepare_s * 1e3, 3), round(timing.infer_s * 1e3, 3), round(timing.finish_s * 1e3, 3),
            None if run is None else round(run.predicted_s * 1e3, 3), None if run is None else run.id,
            result.batch_size, told.label, told.confidence,
            self._user(question, info), self._votes(result.votes, info, redacted),
            int(has_disagreed(result.votes)) if result.votes else None, outcome.media,
            self._kept(question.body, info, redacted),
            None if outcome.code else self._kept(outcome.body, info, None if redacted is None else outcome.body),
        )  # fmt: skip

    def _user(self, question: Question, info: ModelInfo | None) -> str:
        field = None if info is None else info.user_field
        return "" if not field or self._is_heavy(question.body) else field_of(question.body, field)

    def _left(self, body: bytes, info: ModelInfo | None) -> bytes:
        """An answer without what is to be left out; empty if that takes long to find."""
        if info is None or not info.redact:
            return body
        return b"" if self._is_heavy(body) else without(body, info.redact) or b""

    def _votes(self, votes: str, info: ModelInfo | None, redacted: bytes | None) -> str:
        """What members said, as far as answers may be kept."""
        is_kept = bool(votes) and not (info is not None and info.has_redact and redacted is None)
        return self._left(votes.encode(), info).decode() if is_kept else ""

    def _kept(self, body: bytes, info: ModelInfo | None, redacted: bytes | None) -> bytes | None:
        if info is not None and info.has_redact:
            return redacted
        if info is None or not info.keep_inputs or (info.redact and self._is_heavy(body)):
            return None
        return without(body, info.redact)

    def _refused(self, event: Refused, arrived: float, ms: float, redacted: bytes | None) -> tuple[Any, ...]:
        question, run = event.question, event.run
        predicted_s = event.predicted_s if run is None else run.predicted_s
        info = None if question is None else self._info(question)
        limit_s = inf if question is None else question.deadline - question.arrived
        return (
            arrived, event.request_id, event.model, "" if question is None else question.version,
            "" if question is None else question.key or "", event.client, event.status, event.code, "", "", event.code,
            0, 0, ms, None if limit_s == inf else round(limit_s * 1e3, 3), None, None, None, None,
            None if predicted_s is None else round(predicted_s * 1e3, 3), None if run is None else run.id,
            None if run is None else run.size, "", None,
            "" if question is None else self._user(question, info), "", None, "",
            None if question is None else self._kept(question.body, info, redacted), None,
        )  # fmt: skip


def _bytes_of(event: Answered | Refused) -> int:
    if isinstance(event, Answered):
        return len(event.request.body) + len(event.result.outcome.body)
    return 0 if event.question is None else len(event.question.body)


def _minutes(told: list[tuple[Answered | Refused, tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """Rows of counts: minute, model, version, quality, source, code, count, in time, milliseconds."""
    counts: defaultdict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for event, row in told:
        found = counts[int(row[0] // 60), row[2], row[3], row[8], row[9], row[7]]
        found[0] += 1
        found[1] += isinstance(event, Answered) and bool(is_in_time(event))
        found[2] += row[13]
    return [(*which, *found) for which, found in counts.items()]
