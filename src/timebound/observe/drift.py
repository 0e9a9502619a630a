"""Do models still say what they used to? A thread of its own looks at some hundred full answers a second.

Only answers that were computed in full for a request of its own count: none from the store, none that joined, no
partial ones and no fallbacks. While a model's requests get less than that for want of time, the full answers are a
choice, the small and quick ones; then none counts. So neither an overload nor its retries can be taken for a change.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timebound.events import Answered, Events, Refused
from timebound.observe.judged import is_ours
from timebound.observe.shortage import Shortage
from timebound.observe.streams import Alarm, Streams
from timebound.observe.told import Told, told_by
from timebound.types import ModelInfo, Outcome, Quality, Source

log = logging.getLogger("timebound.drift")

EVERY_S = 0.2
_MOST_AT_ONCE = 40
"""Answers of one model that are looked at in that time; with more there is no need to see them all."""
_MOST_BYTES = 200_000
"""Of theirs together."""
_LARGEST = 16_000
"""Bytes of one; the labels of larger answers are not looked for."""
_MOST_VERSIONS = 64
"""Models and versions; of more the first is forgotten."""


class _Look(NamedTuple):
    """What is needed of an answer."""

    served: str
    version: str
    size: float
    sent_bytes: int
    outcome: Outcome


class _Flow:
    """One model's answers since they were last taken in."""

    __slots__ = ("held_bytes", "looks", "passed_over", "shortage")

    def __init__(self) -> None:
        self.looks: list[_Look] = []
        self.held_bytes = 0
        self.shortage = Shortage()
        self.passed_over = 0


class Drift(Collector):
    """`file` keeps what is usual over restarts; `reader` is told what was read in each answer of a model's version."""

    def __init__(
        self,
        events: Events,
        *,
        models: Mapping[str, ModelInfo],
        wall: Callable[[], float],
        file: Path | None = None,
        reader: Callable[[str, str, Told], None] = lambda model, version, told: None,
    ) -> None:
        self._models = models
        self._wall = wall
        self._file = file
        self._reader = reader
        self._flows: dict[str, _Flow] = {}
        self._streams = Streams()
        self._to_learn: set[str] = set()
        self._news: queue.SimpleQueue[Alarm] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drift", daemon=True)
        events.on_many(Answered, self._answered)
        events.on(Refused, self._refused)

    def start(self) -> None:
        """Go on from what was kept."""
        if self._file is not None and self._file.exists():
            try:
                self._streams.read(self._file.read_bytes())
            except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
                log.warning("what was usual cannot be read and is learned anew: %s", error)
        self._thread.start()

    def stop(self) -> None:
        """Keep what is usual, and what there is of it."""
        if self._thread.is_alive():
            self._is_over.set()
            self._thread.join(timeout=10)

    def learn(self, model: str) -> bool:
        """From now on something else is usual for this model; whether it is known."""
        if not any(self._streams.each(model)):
            return False
        self._to_learn.add(model)
        return True

    def news(self) -> Iterator[Alarm]:
        """What has begun to drift since this was asked last; by one reader."""
        while not self._news.empty():
            yield self._news.get()

    def report(self) -> list[dict[str, Any]]:
        """What is known of each version."""
        found = self._streams.report()
        for told in found:
            flow = self._flows.get(told["model"])
            told["is_paused"] = flow is not None and flow.shortage.is_now
            told["passed_over"] = 0 if flow is None else flow.passed_over
        return found

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        labels = ("model", "version", "signal")
        seen = CounterMetricFamily("timebound_drift_values", "Values compared with what is usual.", labels=labels)
        alarms = CounterMetricFamily("timebound_drift_alarms", "Times a signal began to drift.", labels=labels)
        drifting = GaugeMetricFamily("timebound_drifting", "Whether a signal drifts now.", labels=labels)
        psi = GaugeMetricFamily("timebound_drift_psi", "Population stability index; no alarm by itself.", labels=labels)
        for stream in self._streams.each():
            names = (stream.model, stream.version, stream.signal)
            seen.add_metric(names, stream.seen)
            alarms.add_metric(names, stream.alarms)
            drifting.add_metric(names, float(stream.is_drifting))
            if stream.psi is not None:
                psi.add_metric(names, stream.psi)
        yield from (seen, alarms, drifting, psi)

    # ------------------------------------------------------------------ events

    def _flow(self, model: str) -> _Flow:
        flow = self._flows.get(model)
        if flow is None:
            if len(self._flows) >= _MOST_VERSIONS:
                del self._flows[next(iter(self._flows))]
            flow = self._flows[model] = _Flow()
        return flow

    def _answered(self, events: Sequence[Answered]) -> None:
        computed = [
            event for event in events if event.result.source is Source.COMPUTED and not event.result.outcome.code
        ]
        for (model, is_full), same in groupby(computed, _which):
            flow, row = self._flow(model), list(same)
            if is_full:
                flow.shortage.full(len(row))
                self._full(flow, row)
            else:
                for event in row:
                    flow.shortage.less_than_full(event.result.reason)

    def _full(self, flow: _Flow, row: Sequence[Answered]) -> None:
        if flow.shortage.is_now:
            flow.passed_over += len(row)
            return
        for event in row:
            if len(flow.looks) >= _MOST_AT_ONCE or flow.held_bytes >= _MOST_BYTES:
                return
            question, result = event.request, event.result
            if (size := len(result.outcome.body)) <= _LARGEST:
                flow.held_bytes += size
                version, served = result.version or question.version, question.served or question.model
                flow.looks.append(_Look(served, version, question.size, len(question.body), result.outcome))

    def _refused(self, event: Refused) -> None:
        if is_ours(event) and event.question is not None:
            self._flow(event.model).shortage.add(True)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(EVERY_S)
            try:
                self.take_in()
            except Exception:  # whatever a model answers, the next answers are looked at
                log.exception("an answer could not be looked at")
        self._write()

    def take_in(self) -> None:
        """Look at what came since the last time."""
        has_changed = False
        for model in list(self._to_learn):
            self._to_learn.discard(model)
            self._streams.learn(model)
            has_changed = True
        for model, flow in list(self._flows.items()):
            looks, flow.looks, flow.held_bytes = flow.looks, [], 0
            for look in looks:
                has_changed |= self._look(model, look)
        if has_changed:
            self._write()

    def _look(self, model: str, look: _Look) -> bool:
        info = self._models.get(look.served) or self._models.get(model)
        told = told_by(look.outcome.body, look.outcome.media, None if info is None else info.label_field)
        self._reader(model, look.version, told)
        has_size = info is not None and (info.has_size or info.size_field is not None)
        size = look.size if has_size else float(look.sent_bytes)
        values = {"confidence": told.confidence, "label": told.label or None, "size": size}
        added = self._streams.add(model, look.version, values, self._wall())
        for alarm in added.alarms:
            log.warning("answers are not what they used to be", extra=msgspec.structs.asdict(alarm))
            self._news.put(alarm)
        return added.has_learned

    def _write(self) -> None:
        """Replace the file in one step; a disk that cannot be written to is logged and hurts nothing."""
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._file.with_suffix(f".{os.getpid()}.new")
            fresh.write_bytes(self._streams.write())
            fresh.replace(self._file)
        except OSError as error:
            log.warning("what is usual cannot be kept", extra={"file": str(self._file), "why": str(error)})


def _which(event: Answered) -> tuple[str, bool]:
    """The model, and whether its answer is a full one."""
    return event.request.model, event.result.quality is Quality.FULL
