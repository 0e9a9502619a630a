"""What the live page shows: ten minutes of the past, this second, and what was decided and why.

Everything is gathered from events, and kept in rings that do not grow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any, Protocol

import msgspec

from timebound.events import BatchStarted, Events, TurnedAway
from timebound.observe.decisions import Decision, Decisions, budget
from timebound.observe.drift import Drift
from timebound.observe.gpus import GpuNumbers
from timebound.observe.marks import Marks
from timebound.observe.pace import KEPT_S, Pace
from timebound.observe.rings import Ring
from timebound.observe.stream import Stream
from timebound.observe.tally import Since, Tally
from timebound.observe.timeline import Over, Timeline, shown
from timebound.observe.versions import Versions

_STANDING = ("load", "in_time_ratio", "utilisation", "queue_s", "queued", "waiting", "margin_ms", "gateway_cpu",
             "worker_cpu", "memory_mb")  # fmt: skip
_MOST_MODELS = 32
"""Further ones are counted in the total alone."""
_MOST_TOLD = 60
"""Batches and decisions in one message; the pages ask for the others if they need them."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watched(Protocol):
    """The gateway."""

    events: Events
    clock: Any
    requests: Any
    supervisor: Any
    catalogue: Any


class Live:
    """Told the time once a second. Times of what it gives out are in seconds since 1970."""

    def __init__(
        self,
        gateway: Watched,
        signals: Callable[[], Mapping[str, float]],
        wall: Callable[[], float],
        *,
        drift: Drift,
        versions: Versions,
        tally: Tally | None = None,
        gpus: GpuNumbers | None = None,
    ) -> None:
        self._gateway = gateway
        self._signals = signals
        self._wall = wall
        self.drift = drift
        self.versions = versions
        events = gateway.events
        self._since = Since(tally or Tally(events))
        self._all = Pace()
        self._models: dict[str, Pace] = {}
        self._gpus = gpus
        of_gpus = () if gpus is None else tuple(f"gpu_{n}_{what}" for n in gpus.names for what in ("busy", "mb"))
        self._standing = Ring((*_STANDING, *of_gpus), KEPT_S)
        self._times = Ring(("at",), KEPT_S)
        self.timeline = Timeline(events)
        self.decisions = Decisions(events, gateway.clock.now)
        self.marks = Marks(events, gateway.catalogue.models, wall)
        self.stream = Stream()
        self._stood = [0.0] * len(self._standing.names)
        self._used: dict[str, float] = {}
        self._used_at = gateway.clock.now()
        self._cores: dict[str, float] = {}
        """By worker, over the last second."""
        self._told_batches = self._told_decisions = -1
        events.on(BatchStarted, self._started)
        events.on(TurnedAway, lambda event: self._all.stopped(event.code))

    # ------------------------------------------------------------------ events

    def _pace(self, model: str) -> Pace:
        """A model's own, made when it is first asked; of too many that of all, but models that are gone give way."""
        if len(self._models) >= _MOST_MODELS:
            served = {info.base for info in self._gateway.catalogue.models.values()}
            gone = next((name for name in self._models if name not in served), None)
            if gone is None or model not in served:
                return self._all
            del self._models[gone]
        pace = self._models[model] = Pace()
        for _ in range(min(KEPT_S, self._times_kept)):  # its rows are as many as everybody's
            pace.turn()
        return pace

    @property
    def _times_kept(self) -> int:
        return len(self._times.columns()["at"])

    def _started(self, event: BatchStarted) -> None:
        model = event.model.partition("@")[0]
        (self._models.get(model) or self._pace(model)).started(event)

    # ------------------------------------------------------------------ once a second

    def tick(self, now: float) -> None:
        """A second is over; whoever watches is told."""
        for kind, count in self._since.seen():
            (self._models.get(kind.model) or self._pace(kind.model)).count(kind, count)
        for model, latencies in self._since.latencies():
            (self._models.get(model) or self._pace(model)).time(latencies)
        for pace in self._models.values():
            self._all.add(pace)
            pace.turn()
        self._all.turn()
        self._times.put((round(self._wall(), 3),))
        self._stood = self._stand(now)
        self._standing.put(self._stood)
        self.versions.tick()
        for alarm in self.drift.news():
            self.marks.put("drift", alarm.model, alarm.signal)
        self.marks.tick()
        news = list(self.marks.news())
        if self.stream:
            self.stream.tell(b"data: " + msgspec.json.encode(self._second(now) | {"marks": news}) + b"\n\n")
        self._told_batches = self.timeline.recent.count - 1
        self._told_decisions = self.decisions.recent.count - 1

    def _stand(self, now: float) -> list[float]:
        requests, signals = self._gateway.requests, self._signals()
        used: dict[str, tuple[float, float]] = self._gateway.supervisor.usage()
        seconds = {worker: cpu_s for worker, (_, cpu_s) in used.items()} | {"": time.process_time()}
        passed_s = max(1e-3, now - self._used_at)
        cores = self._cores = {
            name: max(0.0, value - self._used.get(name, value)) / passed_s for name, value in seconds.items()
        }
        self._used, self._used_at = seconds, now
        held = sum(memory for memory, _ in used.values()) + _own_memory()
        return [
            signals["load_ratio"], signals["in_time_ratio"], signals["utilisation"], signals["queue_seconds"],
            requests.queued(), requests.waiting, round(requests.margin_s * 1e3, 2), round(cores.pop(""), 3),
            round(sum(cores.values()), 3), round(held / 1e6, 1), *self._of_gpus(),
        ]  # fmt: skip

    def _of_gpus(self) -> list[float]:
        if self._gpus is None:
            return []
        cards = dict(self._gpus.read())
        busy_and_mb = [
            (cards[n].busy, cards[n].used_bytes / 1e6) if n in cards else (nan, nan) for n in self._gpus.names
        ]
        return [round(number, 3) for both in busy_and_mb for number in both]

    def _second(self, now: float) -> dict[str, Any]:
        ahead = self._wall() - now
        standing = dict(zip(self._standing.names, self._stood, strict=True))
        left_out = max(0, self.timeline.recent.count - 1 - self._told_batches - _MOST_TOLD)
        recent = islice(self.timeline.recent.newest(self._told_batches), _MOST_TOLD)
        batches = [self._batch(ran, ahead) for _, ran in recent]
        made = islice(self.decisions.recent.newest(self._told_decisions), _MOST_TOLD)
        decisions = [self._decision(number, one, ahead) for number, one in made]
        return {
            "at": round(self._wall(), 3),
            "all": self._all.last | standing,
            "models": {name: pace.last for name, pace in self._models.items()},
            "batches": batches,
            "batches_left_out": left_out,
            "decisions": decisions,
            **self.workers(now),
        }

    # ------------------------------------------------------------------ for pages

    def past(self, model: str = "") -> dict[str, Any]:
        """Ten minutes of one model, or of all together, column by column."""
        pace = self._all if not model else self._models.get(model)
        now = self._gateway.clock.now()
        ahead = self._wall() - now
        columns = {} if pace is None else pace.ring.columns()
        if not model:
            columns |= self._standing.columns()
        newest = self.timeline.recent.newest
        return {
            "at": self._times.columns()["at"],
            "columns": columns,
            "models": sorted(self._models),
            "deadlines_ms": self._deadlines(),
            "marks": self.marks.all(),
            "batches": [self._batch(ran, ahead) for _, ran in newest(self.timeline.recent.count - 301)],
            **self.workers(now),
        }

    def workers(self, now: float) -> dict[str, Any]:
        """Workers, and what each slot does."""
        ahead, running = self._wall() - now, self.timeline.running
        workers = [
            {**one, "cores": round(self._cores.get(str(one["worker"]), 0.0), 3)}
            for one in self._gateway.supervisor.describe()
        ]
        slots = []
        for worker in workers:
            for place in range(0 if worker["is_understudy"] else worker["slots"]):
                name = f"slot {worker['worker']}.{place}"
                run, _ = running.get(name, (None, 0))
                busy = {} if run is None else {
                    "model": run.model, "size": run.size, "batch": run.id, "since": round(run.started + ahead, 4),
                    "predicted_ms": round(run.predicted_s * 1e3, 2), "reason": run.reason,
                }  # fmt: skip
                slots.append({"slot": name, **busy})
        return {"workers": workers, "slots": slots}

    def decided(self, *, reason: str, model: str, request: str, most: int) -> list[dict[str, Any]]:
        """Decisions about requests and batches, the newest first."""
        ahead = self._wall() - self._gateway.clock.now()
        matching = self.decisions.matching(reason=reason, model=model, request=request)
        found = [self._decision(number, made, ahead) for number, made in islice(matching, most)]
        if not request:
            batches = (ran for _, ran in self.timeline.recent.newest() if _is_wanted(ran, reason, model))
            found += [{"kind": "batch", **self._batch(ran, ahead)} for ran in islice(batches, most)]
        return sorted(found, key=lambda one: -one["at"])[:most]

    def request(self, name: str) -> dict[str, Any] | None:
        """Where the time of one request went, and what was decided about it; None if it is not among the last."""
        past = self.decisions.find(name)
        if past is None:
            return None
        ahead = self._wall() - self._gateway.clock.now()
        made = [self._decision(number, one, ahead) for number, one in self.decisions.matching(request=name)]
        return {**budget(past, self._gateway.requests.margin_s), "decisions": made}

    def _deadlines(self) -> dict[str, float]:
        return {info.base: round(info.deadline_s * 1e3, 3) for info in self._gateway.catalogue.models.values()}

    @staticmethod
    def _batch(over: Over, ahead: float) -> dict[str, Any]:
        ran = shown(over)
        told: dict[str, Any] = msgspec.to_builtins(ran)
        started = told.pop("started") + ahead
        return {"at": round(started + ran.ms / 1e3, 4), "started": round(started, 4), **told}

    @staticmethod
    def _decision(number: int, made: Decision, ahead: float) -> dict[str, Any]:
        return {**msgspec.to_builtins(made), "number": number, "at": round(made.at + ahead, 4)}


def _is_wanted(over: Over, reason: str, model: str) -> bool:
    is_of_model = not model or over.run.model.partition("@")[0] == model
    return is_of_model and (not reason or reason in (over.run.reason, over.end, "batch"))


def _own_memory() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
