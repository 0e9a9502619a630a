"""Every answer and refusal, counted once: metrics, signals and the live page make what they show of these counts.

It is called for every batch, and they only when somebody looks or a second is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from timebound.events import Answered, Events, Refused
from timebound.observe.families import MOST_COUNTS, MOST_HISTOGRAMS, Histogram
from timebound.observe.judged import is_ours
from timebound.observe.rings import Bounded
from timebound.types import Quality

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0)
SLACK = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FINE: tuple[float, ...] = tuple(1e-4 * 1.08**step for step in range(181))
"""Seconds, from a tenth of a millisecond to two minutes: a percentile is right to 8 percent."""


class Seen(NamedTuple):
    """What requests that are counted together have in common; in the counts it is a plain tuple."""

    model: str
    version: str
    status: int
    code: str
    quality: str
    source: str
    in_time: bool | None


class Times(NamedTuple):
    """How long the requests of one model and version took, what was left to them, and how long they waited."""

    latency: Histogram
    slack: Histogram
    queue: Histogram


def _times() -> Times:
    return Times(Histogram(SECONDS), Histogram(SLACK), Histogram(SECONDS))


class Tally:
    """Listens to answers and refusals. Of too many models and versions the first are forgotten, and begin anew at 0."""

    def __init__(self, events: Events) -> None:
        self.kinds: Bounded[tuple[object, ...], int] = Bounded(int, MOST_COUNTS)
        """The counts; each key is a `Seen`."""
        self.clients: Bounded[tuple[str, str], int] = Bounded(int, MOST_COUNTS)
        """By API key and final code."""
        self.failed_s: Bounded[tuple[str, str], float] = Bounded(float, MOST_HISTOGRAMS)
        """What requests without an answer took in all, by model and version."""
        self.times: Bounded[tuple[str, str], Times] = Bounded(_times, MOST_HISTOGRAMS)
        """By model and version."""
        self.latencies: Bounded[str, list[int]] = Bounded(lambda: [0] * (len(FINE) + 1), MOST_HISTOGRAMS)
        """Answers of each model by what they took, between the bounds of `FINE`."""
        events.on_many(Answered, self._answered)
        events.on(Refused, self._refused)

    def seen(self) -> Iterator[tuple[Seen, int]]:
        """How many there were of each kind."""
        for key, count in list(self.kinds.items()):
            yield Seen(*key), count  # type: ignore[arg-type]

    def _answered(self, events: Sequence[Answered]) -> None:
        """Count those in a row together that have all of `Seen` in common, as nearly all of a batch do."""
        last: tuple[str, str, int, str, str, str, bool | None] | None = None
        row: list[Answered] = []
        lefts: list[float] = []
        for event in events:
            request, result, status = event.request, event.result, event.status
            code, quality = result.outcome.code, result.quality
            left_s = request.deadline - request.arrived - event.seconds
            if code:  # as `is_in_time` says, without a call
                in_time = False if status >= 500 else None
            else:
                in_time = left_s >= 0 and quality is not Quality.FALLBACK
            version = result.version or request.version
            kind = (request.model, version, status, code, quality, result.source, in_time)
            if kind != last:
                if last is not None:
                    self._count(last, row, lefts)
                last, row, lefts = kind, [], []
            row.append(event)
            lefts.append(left_s if left_s > 0.0 else 0.0)
        if last is not None:
            self._count(last, row, lefts)

    def _count(
        self, kind: tuple[str, str, int, str, str, str, bool | None], row: Sequence[Answered], lefts: Sequence[float]
    ) -> None:
        model, version, _, code, *_ = kind
        self.kinds[kind] += len(row)
        times, latencies = self.times[model, version], self.latencies[model]
        seconds = [event.seconds for event in row]
        times[0].add_each(seconds, [event.request for event in row])
        for took_s in seconds:
            latencies[bisect_left(FINE, took_s)] += 1
        for event in row:
            if event.request.client:
                self.clients[event.request.client, code or "ok"] += 1
        if not code:
            times[1].add_all(lefts)
            times[2].add_all([event.result.queue_s for event in row])
        else:
            self.failed_s[model, version] += sum(seconds)

    def _refused(self, event: Refused) -> None:
        version = event.question.version if event.question is not None else ""
        in_time = False if is_ours(event) else None
        self.kinds[event.model, version, event.status, event.code, "", "", in_time] += 1
        trace = None if event.question is None else event.question.trace
        self.times[event.model, version].latency.add(event.seconds, event.request_id, trace)
        self.failed_s[event.model, version] += event.seconds
        if event.client:
            self.clients[event.client, event.code] += 1


class Since:
    """What was counted since the last look of one who looks."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._kinds: dict[tuple[object, ...], int] = {}
        self._latencies: dict[str, list[int]] = {}

    def seen(self) -> Iterator[tuple[Seen, int]]:
        """Kinds with more than before, and how many more."""
        before, self._kinds = self._kinds, dict(self._tally.kinds)
        for key, count in self._kinds.items():
            known = before.get(key, 0)
            if count != known:  # if it is less, this kind was forgotten and began anew
                yield Seen(*key), count - known if count > known else count  # type: ignore[arg-type]

    def latencies(self) -> Iterator[tuple[str, list[int]]]:
        """The same of what answers took, by model."""
        before, self._latencies = (
            self._latencies,
            {name: list(counts) for name, counts in self._tally.latencies.items()},
        )
        for model, counts in self._latencies.items():
            known = before.get(model)
            if known is None or sum(known) > sum(counts):
                yield model, counts
            elif known != counts:
                yield model, [now - then for now, then in zip(counts, known, strict=True)]
