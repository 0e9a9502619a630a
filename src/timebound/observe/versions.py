"""Versions that share a model's requests, or only get copies: what each did since they were last divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from timebound.events import Answered, Compared, Events, Refused
from timebound.observe.judged import is_in_time, is_ours
from timebound.observe.sides import Paired, Side, differences
from timebound.observe.told import Told, told_by
from timebound.types import ModelInfo, Outcome, Source


class Lot(Protocol):
    """How a model's requests are divided."""

    @property
    def ends(self) -> Sequence[float]: ...
    @property
    def infos(self) -> Sequence[ModelInfo]: ...
    @property
    def shadows(self) -> Sequence[ModelInfo]: ...


class _Contest:
    """One model's versions since their shares were last changed."""

    def __init__(self, lot: Lot, began: float) -> None:
        self.began = began
        starts = [0.0, *lot.ends]
        parts = {info.version: end - start for info, start, end in zip(lot.infos, starts, lot.ends, strict=False)}
        self.shares = {version: round(part, 6) for version, part in parts.items()}
        self.base = max(self.shares, key=self.shares.__getitem__)
        self.sides = {version: Side() for version in self.shares}
        self.copies = {info.version: Paired() for info in lot.shadows}

    @property
    def division(self) -> tuple[object, ...]:
        return tuple(self.shares.items()), tuple(self.copies)


class Versions:
    """Listens; `lots` has the models with several versions. What answers say is told by who reads them anyway."""

    def __init__(self, events: Events, lots: Callable[[], Mapping[str, Lot]], wall: Callable[[], float]) -> None:
        self._lots = lots
        self._wall = wall
        self._contests: dict[str, _Contest] = {}
        events.on_many(Answered, self._answered)
        events.on(Refused, self._refused)
        events.on(Compared, self._compared)

    def tick(self) -> None:
        """Begin anew where the division has changed."""
        lots = self._lots()
        for model in [model for model in self._contests if model not in lots]:
            del self._contests[model]
        for model, lot in lots.items():
            fresh = _Contest(lot, self._wall())
            if model not in self._contests or self._contests[model].division != fresh.division:
                self._contests[model] = fresh

    def told(self, model: str, version: str, told: Told) -> None:
        """What a full answer says; by another thread."""
        if (side := self._side(model, version)) is not None:
            side.told(told.label, told.confidence)

    def report(self) -> list[dict[str, Any]]:
        """What is known of each model with several versions."""
        return [_shown(model, contest) for model, contest in sorted(self._contests.items())]

    def _side(self, model: str, version: str) -> Side | None:
        contest = self._contests.get(model)
        return None if contest is None else contest.sides.get(version)

    def _answered(self, events: Sequence[Answered]) -> None:
        if self._contests:
            for event in events:
                self._count(event)

    def _count(self, event: Answered) -> None:
        result = event.result
        side = self._side(event.request.model, result.version or event.request.version)
        if side is None or result.source is Source.STORED:
            return
        in_time = is_in_time(event)
        if in_time is not None:
            side.due += 1
            side.in_time += in_time
        if not result.outcome.code and result.source is Source.COMPUTED:
            side.took(event.seconds)

    def _refused(self, event: Refused) -> None:
        if event.question is not None and is_ours(event):
            side = self._side(event.model, event.question.version)
            if side is not None:
                side.due += 1

    def _compared(self, event: Compared) -> None:
        contest = self._contests.get(event.model)
        paired = None if contest is None else contest.copies.get(event.version)
        if paired is None:
            return
        if event.sent is None or event.copy is None:
            paired.not_computed += 1
            return
        paired.copies += 1
        paired.same += event.verdict == "agrees"
        sent, copy = self._read(event.model, event.sent), self._read(event.model, event.copy)
        if sent.label or copy.label:
            paired.labelled += 1
            paired.same_label += sent.label == copy.label
        if sent.confidence is not None and copy.confidence is not None:
            paired.surer.add(copy.confidence - sent.confidence)

    def _read(self, model: str, outcome: Outcome) -> Told:
        lot = self._lots().get(model)
        fields = [] if lot is None else [info.label_field for info in lot.infos]
        return Told() if outcome.code else told_by(outcome.body, outcome.media, fields[0] if fields else None)


def _shown(model: str, contest: _Contest) -> dict[str, Any]:
    base = contest.sides[contest.base]
    return {
        "model": model,
        "since": round(contest.began, 3),
        **beside(contest.base, {version: contest.sides[version] for version in contest.shares}, base),
        "shares": contest.shares,
        "copies": {version: msgspec.to_builtins(paired.shown()) for version, paired in contest.copies.items()},
    }


def beside(name: str, sides: Mapping[str, Side], base: Side) -> dict[str, Any]:
    """The versions, and how each differs from the base."""
    off = {version: differences(base, side)._asdict() for version, side in sides.items() if side is not base}
    return {
        "base": name,
        "versions": {version: msgspec.to_builtins(side.shown()) for version, side in sides.items()},
        "differences": msgspec.to_builtins(off),
    }
