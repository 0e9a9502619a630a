"""Requirements such as `goodput>=0.99,p99<250ms`: read, and held against figures."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timebound.errors import SetupError

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|==|<|>)\s*([0-9.]+(?:e-?[0-9]+)?)\s*(%|us|ms|s|min)?\s*")
# To milliseconds, for figures that are durations.
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "min": 60_000.0}
# Without an answer they say nothing, and so no requirement on them is met.
_OF_ANSWERS = ("p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "min_ms", "max_ms", "mean_ms")

NAMES = (
    "goodput", "in_time", "goodput_rps", "answered_rps", "offered_rps", "p50", "p90", "p99", "p99.9", "min", "max",
    "mean", "requests", "failed", "refused", "timed_out", "lost", "wrong", "late", "resends", "full_share",
    "partial_share", "fallback_share", "mean_members", "client_cpu", "client_send_lag_p99", "client_loop_lag_p99",
)  # fmt: skip


@dataclass(frozen=True)
class Requirement:
    """One comparison of a figure with a number, in the figure's own unit."""

    text: str
    figure: str
    relation: str
    bound: float

    def _is_void(self, figures: Mapping[str, float]) -> bool:
        return self.figure in _OF_ANSWERS and figures["requests"] == figures["failed"]

    def is_met(self, figures: Mapping[str, float]) -> bool:
        """Whether the figures hold to it; latencies of no answers at all never do."""
        return not self._is_void(figures) and _RELATIONS[self.relation](figures[self.figure], self.bound)

    def found(self, figures: Mapping[str, float]) -> str:
        """What the figure is, in words."""
        if self._is_void(figures):
            return "nothing was answered"
        unit = " ms" if self.figure.endswith("_ms") else ""
        return f"it is {figures[self.figure]:.5g}{unit}"


def read(text: str) -> list[Requirement]:
    """The requirements in a text, separated by commas; raises `SetupError` naming the one that is wrong."""
    return [_read_one(part) for part in text.split(",") if part.strip()]


def _read_one(text: str) -> Requirement:
    match = _FORM.fullmatch(text)
    if match is None:
        raise SetupError(f"--require: {text.strip()!r} is no comparison; write for example goodput>=0.99 or p99<250ms")
    name, relation, number, unit = match.groups()
    if name not in NAMES:
        raise SetupError(f"--require: there is no figure {name!r}; there are: {', '.join(NAMES)}")
    is_duration = name in ("min", "max", "mean") or bool(re.fullmatch(r"p[0-9.]+|client_\w+_lag_p99", name))
    figure = name.replace(".", "_") + "_ms" if is_duration else name
    try:
        bound = float(number)
    except ValueError:
        raise SetupError(f"--require: {number!r} in {text.strip()!r} is no number") from None
    if unit in _UNITS and not is_duration:
        raise SetupError(f"--require: {name} is no time and takes no unit {unit!r}")
    if is_duration and unit is None:
        raise SetupError(f"--require: {name} is a time; give its unit, such as {name}{relation}{number}ms")
    if is_duration and unit == "%":
        raise SetupError(f"--require: {name} is a time and no share; write for example {name}<250ms")
    if unit == "%":
        bound /= 100
    elif is_duration:
        bound *= _UNITS[unit]
    return Requirement(text.strip(), figure, relation, bound)
