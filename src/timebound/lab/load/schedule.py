"""When requests come in an open loop: times in seconds from the beginning, whatever the server does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from timebound.errors import SetupError

# Bursts: a fifth of each period at three times the mean rate, the rest at half of it.
BURST_PERIOD_S = 4.0
BURST_SHARE = 0.2
BURST_HEIGHT = 3.0


@dataclass(frozen=True)
class Phase:
    """A stretch of arrivals at one mean rate."""

    rate: float
    seconds: float


def poisson(phases: Sequence[Phase], seed: int) -> Iterator[float]:
    """Independent arrivals."""
    return _arrivals(phases, random.Random(seed).expovariate)


def even(phases: Sequence[Phase]) -> Iterator[float]:
    """Arrivals at equal distances."""
    return _arrivals(phases, lambda rate: 1 / rate)


def _arrivals(phases: Sequence[Phase], gap: Callable[[float], float]) -> Iterator[float]:
    begins = 0.0
    for phase in phases:
        now = begins + gap(phase.rate)
        while now < begins + phase.seconds:
            yield now
            now += gap(phase.rate)
        begins += phase.seconds


def bursts(rate: float, seconds: float) -> list[Phase]:
    """`rate` on average, in bursts with lulls between them."""
    low = (1.0 - BURST_HEIGHT * BURST_SHARE) / (1.0 - BURST_SHARE)
    stretches = (Phase(rate * BURST_HEIGHT, BURST_SHARE * BURST_PERIOD_S),
                 Phase(rate * low, (1 - BURST_SHARE) * BURST_PERIOD_S))  # fmt: skip
    phases: list[Phase] = []
    left = seconds
    while left > 1e-9:
        stretch = stretches[len(phases) % 2]
        phases.append(Phase(stretch.rate, min(left, stretch.seconds)))
        left -= stretch.seconds
    return phases


def trace(file: Path, speed: float = 1.0) -> list[float]:
    """Arrival times from a file: one number of seconds a line, or its first column; they begin at zero here."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read the trace {file}: {error}") from None
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].replace(",", " ").split()[:1]
        if not word:
            continue
        try:
            times.append(float(word[0]))
        except ValueError:
            if times:  # a heading may come first
                raise SetupError(f"{file}, line {number}: {word[0]!r} is no time in seconds") from None
    if not times:
        raise SetupError(f"{file} holds no times; write one arrival in seconds on each line")
    times.sort()
    return [(each - times[0]) / speed for each in times]
