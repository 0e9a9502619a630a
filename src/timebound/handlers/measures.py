"""The numbers that a handler reports: `context.metrics.add_time(...)` and its kin, summed up for the server's metrics.

Names are the handler's own, so their number is bounded: what comes after `MOST_NAMES` is counted under one name.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from timebound.types import Measured

MOST_NAMES = 100
OTHER = "other"
_LONGEST = 64


class Measures:
    """What a handler's `context.metrics` does. Dimensions are taken and not kept."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()  # a handler may have threads of its own
        self._sums: dict[tuple[str, str, str], list[float]] = {}
        self._families: dict[str, Family] = {}
        self._names: set[str] = set()
        self.news: threading.Event | None = None
        """Set when there is something to take."""
        self.request_ids: Mapping[int, str] | None = None

    def take(self) -> list[Measured]:
        """What came since it was last asked."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return [
            Measured(self._model, name, unit, kind, count=int(count), total=total, last=last)
            for (name, unit, kind), (count, total, last) in sums.items()
        ]

    def put(self, name: Any, value: Any, unit: Any, kind: str) -> None:
        """Add one value; one that is no number is left out, for a number nobody reads must cost no answer."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            return
        if not math.isfinite(number):
            return
        with self._lock:
            key = (self._bounded(str(name)), str(unit or "")[:_LONGEST], kind)
            found = self._sums.setdefault(key, [0, 0.0, 0.0])
            found[0] += 1
            found[1] += number
            found[2] = number
        if self.news is not None:
            self.news.set()

    def _bounded(self, name: str) -> str:
        name = name[:_LONGEST]
        if name in self._names or len(self._names) < MOST_NAMES:
            self._names.add(name)
            return name
        return OTHER

    # ------------------------------------------------------------------ what handlers call

    def add_counter(self, name: str, value: Any, idx: Any = None, dimensions: Any = None) -> None:
        self.put(name, value, "count", "counter")

    def add_error(self, name: str, value: Any = 1, dimensions: Any = None) -> None:
        self.put(name, value if isinstance(value, int | float) else 1, "count", "counter")

    def add_time(self, name: str, value: Any, idx: Any = None, unit: str = "ms", dimensions: Any = None) -> None:
        self.put(name, value, unit, "value")

    def add_size(self, name: str, value: Any, idx: Any = None, unit: str = "MB", dimensions: Any = None) -> None:
        self.put(name, value, unit, "value")

    def add_percent(self, name: str, value: Any, idx: Any = None, dimensions: Any = None) -> None:
        self.put(name, value, "percent", "value")

    def add_metric(
        self,
        name: str = "",
        value: Any = 0,
        idx: Any = None,
        unit: Any = None,
        dimensions: Any = None,
        **other: Any,
    ) -> None:
        self.put(other.get("metric_name", name), value, unit, "value")

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: Any = "",
        dimension_names: Sequence[str] = (),
        metric_type: Any = "gauge",
    ) -> Family:
        kind = "counter" if str(getattr(metric_type, "value", metric_type)).lower() == "counter" else "value"
        return self._families.setdefault(str(metric_name)[:_LONGEST], Family(self, str(metric_name), unit, kind))

    def get_metric(self, metric_name: str, metric_type: Any = "gauge", **_: Any) -> Family:
        return self.add_metric_to_cache(metric_name, metric_type=metric_type)


class Family:
    """One metric that a handler keeps and adds to."""

    def __init__(self, measures: Measures, name: str, unit: Any, kind: str) -> None:
        self._measures = measures
        self.metric_name = name
        self._unit, self._kind = unit, kind

    def add_or_update(self, value: Any, dimension_values: Any = (), request_id: str = "") -> None:
        self._measures.put(self.metric_name, value, self._unit, self._kind)

    def update(self, value: Any, *_: Any, **__: Any) -> None:
        self._measures.put(self.metric_name, value, self._unit, self._kind)

    def reset(self) -> None:
        """Sums are kept by the server; nothing to do."""
