"""What one version of a model says, as three streams: how sure it is, which label, how large what was sent was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from timebound.observe.detector import Detector, of_labels, of_numbers
from timebound.observe.reference import LEAST, Reference, mark

SIGNALS = ("confidence", "label", "size")
_STANDS_FOR = 2_000
"""Values after an alarm without another one, until it is over."""
_MOST_VERSIONS = 64
"""Models and versions; of more the first is forgotten."""
_OTHERS = ("rarer labels", "new labels")


class Alarm(msgspec.Struct, frozen=True):
    """A stream has changed: its mean, or the share of one label."""

    at: float
    """Seconds since 1970."""
    model: str
    version: str
    signal: str
    what: str
    """lower, higher or spread, of numbers; else the label whose share has changed most."""
    now: float
    usual: float
    after: int
    """How many values had been compared with the reference."""


class Kept(msgspec.Struct, frozen=True):
    """A stream as it lies in a file, which has no label in plain words."""

    model: str
    version: str
    signal: str
    reference: Reference | None = None
    learning: list[float | str] = []


class Stream:
    """One signal of one version: it learns what is usual, then compares."""

    def __init__(self, model: str, version: str, signal: str) -> None:
        self.model, self.version, self.signal = model, version, signal
        self.alarms = 0
        """Times it began to drift."""
        self.last: Alarm | None = None
        self.detector: Detector | None = None
        self._learning: list[float | str] = []
        self._names: dict[str, str] = {}
        self._last_place = -_STANDS_FOR

    def add(self, value: float | str, at: float) -> bool:
        """Take one value; whether the stream has just got a reference."""
        if isinstance(value, str):
            value = self._marked(value)
        detector = self.detector
        if detector is not None:
            if detector.add(value):
                self._alarm(detector, at)
            return False
        self._learning.append(value)
        if len(self._learning) < LEAST:
            return False
        learned = _learned(self.signal, self._learning)
        self._learning = []  # if there is nothing to compare with, it learns on
        self.detector = None if learned is None else Detector(learned)
        return learned is not None

    def _marked(self, label: str) -> str:
        marked = mark(label)
        known = [] if self.detector is None else self.detector.reference.labels
        if len(self._names) < len(known) and marked in known:
            self._names[marked] = label
        return marked

    def _alarm(self, detector: Detector, at: float) -> None:
        is_new = not self.is_drifting
        self._last_place = detector.count
        self.alarms += is_new
        what, now, usual = self._said(detector)
        if is_new:
            self.last = Alarm(at, self.model, self.version, self.signal, what, now, usual, detector.count)

    def _said(self, detector: Detector) -> tuple[str, float, float]:
        """What has changed most: its name, now and before."""
        reference = detector.reference
        if reference.values:
            off = detector.mean - reference.mean
            what = "spread" if abs(off) < 0.1 * reference.sd else "lower" if off < 0 else "higher"
            return what, round(detector.mean, 4), round(reference.mean, 4)
        place, now, usual = detector.moved
        own = reference.labels
        name = self._names.get(own[place], "?") if place < len(own) else _OTHERS[place - len(own)]
        return name, round(now, 4), round(usual, 4)

    @property
    def is_drifting(self) -> bool:
        """Whether the last alarm is not over."""
        return self.detector is not None and self.detector.count - self._last_place < _STANDS_FOR

    @property
    def psi(self) -> float | None:
        """How far its shares are from the usual ones."""
        return None if self.detector is None else round(self.detector.psi, 4)

    @property
    def seen(self) -> int:
        """Values compared with the reference."""
        return 0 if self.detector is None else self.detector.count

    def shown(self) -> dict[str, Any]:
        """For people and programs."""
        told: dict[str, Any] = {"signal": self.signal, "alarms": self.alarms}
        told["last_alarm"] = None if self.last is None else msgspec.to_builtins(self.last)
        detector = self.detector
        if detector is None:
            return {**told, "state": "learning", "learned": len(self._learning), "of": LEAST}
        what, now, usual = self._said(detector)
        state = "drifting" if self.is_drifting else "watching"
        facts = {"seen": detector.count, "psi": self.psi, "evidence": round(detector.evidence, 3)}
        return {**told, "state": state, **facts, "what": what, "now": now, "usual": usual}

    def kept(self) -> Kept:
        """What is worth keeping."""
        reference = None if self.detector is None else self.detector.reference
        return Kept(self.model, self.version, self.signal, reference, list(self._learning))

    @classmethod
    def of(cls, kept: Kept) -> Stream:
        """The stream that was kept; raises `ValueError` if it cannot be true."""
        stream = cls(kept.model, kept.version, kept.signal)
        if kept.signal not in SIGNALS or len(kept.learning) >= LEAST:
            raise ValueError(f"{kept.signal} with {len(kept.learning)} values")
        wanted = str if kept.signal == "label" else float
        if not all(isinstance(value, wanted) for value in kept.learning):
            raise ValueError(f"values of {kept.signal} of a wrong kind")
        stream._learning = list(kept.learning)
        if kept.reference is not None:
            _check(kept.reference, is_label=kept.signal == "label")
            stream.detector = Detector(kept.reference)
        return stream


def _check(reference: Reference, *, is_label: bool) -> None:
    shares, numbers = reference.shares, [*reference.shares, *reference.edges, *reference.values, reference.mean]
    has_bins = len(reference.labels) + 2 if is_label else len(reference.edges) + 1
    is_whole = len(shares) == has_bins and (is_label or len(reference.values) == has_bins)
    is_true = all(map(isfinite, numbers)) and min(shares, default=0.0) > 0 and abs(sum(shares) - 1) < 1e-6
    if not (is_whole and is_true and reference.count >= LEAST and reference.edges == sorted(reference.edges)):
        raise ValueError("its shares are none")


class Added(NamedTuple):
    """What came of one answer."""

    has_learned: bool
    """Whether something has become usual by it."""
    alarms: list[Alarm]


class Streams:
    """Those of all versions of all models; one thread adds."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], dict[str, Stream]] = {}

    def add(self, model: str, version: str, values: Mapping[str, float | str | None], at: float) -> Added:
        """Take one answer's signals, by their names."""
        streams = self._version(model, version)
        has_learned, alarms = False, []
        for signal, value in values.items():
            if value is None:
                continue
            stream = streams.get(signal) or Stream(model, version, signal)
            before = stream.alarms
            has_learned |= stream.add(value, at)
            streams[signal] = stream
            if stream.alarms > before and stream.last is not None:
                alarms.append(stream.last)
        return Added(has_learned, alarms)

    def learn(self, model: str) -> None:
        """Forget what is usual for this model: the next answers are."""
        for (name, version), streams in self._versions.items():
            if name == model:
                streams |= {signal: Stream(name, version, signal) for signal in streams}

    def each(self, model: str = "") -> Iterator[Stream]:
        """Every stream, or those of one model; also while another thread adds."""
        for (name, _), streams in sorted(self._versions.copy().items()):
            if not model or name == model:
                yield from streams.copy().values()

    def report(self) -> list[dict[str, Any]]:
        """What is known of each version."""
        return [
            {"model": model, "version": version, "signals": [stream.shown() for stream in streams.copy().values()]}
            for (model, version), streams in sorted(self._versions.copy().items())
        ]

    def write(self) -> bytes:
        """All of it as a file has it."""
        return msgspec.json.encode([stream.kept() for stream in self.each()])

    def read(self, data: bytes) -> None:
        """Go on from what was written; raises `ValueError` if it cannot be true, and then knows what it knew before."""
        found = [Stream.of(kept) for kept in msgspec.json.decode(data, type=list[Kept])]
        for stream in found[: len(SIGNALS) * _MOST_VERSIONS]:
            self._version(stream.model, stream.version)[stream.signal] = stream

    def _version(self, model: str, version: str) -> dict[str, Stream]:
        streams = self._versions.get((model, version))
        if streams is None:
            if len(self._versions) >= _MOST_VERSIONS:
                del self._versions[next(iter(self._versions))]
            streams = self._versions[model, version] = {}
        return streams


def _learned(signal: str, values: list[Any]) -> Reference | None:
    return of_labels(values) if signal == "label" else of_numbers(values)
