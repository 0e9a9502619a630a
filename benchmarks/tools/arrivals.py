"""When requests come: streams of arrival times, and users who ask again after an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from timebound.lab import simulate

Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Arrival(simulate.Arrival):
    """One request of the outside world, of more or less weight."""

    priority: int = 0
    deadline_s: float | None = None  # None: the model's own


@dataclass(frozen=True, slots=True)
class Users:
    """Closed loop: each of `count` users asks, waits for the answer, thinks, and asks again."""

    count: int
    model: str
    think_s: tuple[float, float] = (2.0, 5.0)


def one_size(rng: random.Random) -> float:
    """Images: all alike."""
    del rng
    return 1.0


def text_size(rng: random.Random) -> float:
    """Texts: mean 1, a heavy right tail, cut at 4."""
    return min(4.0, max(0.2, rng.lognormvariate(-0.245, 0.7)))


def constant(rate: float, ramp_s: float = 4.0) -> Rate:
    """A steady rate, reached from a fifth of it within `ramp_s`: a server is not judged on its first second."""
    return lambda t: rate * min(1.0, 0.2 + 0.8 * t / ramp_s) if ramp_s else rate


def bursts(rate: float, high: float = 3.0, period_s: float = 4.0, share: float = 0.2, phase_s: float = 0.0) -> Rate:
    """`rate` on average; a `share` of each period at `high` times that."""
    low = (1.0 - high * share) / (1.0 - share)
    return lambda t: rate * (high if (t + phase_s) % period_s < share * period_s else low)


def spike(rate: float, height: float, start: float, end: float) -> Rate:
    """A steady rate, and another one from `start` to `end`."""
    steady = constant(rate)
    return lambda t: height if start <= t < end else steady(t)


def poisson(
    rate: Rate,
    highest: float,
    until: float,
    *,
    model: str = "model",
    seed: int = 1,
    size: Callable[[random.Random], float] = one_size,
    priorities: Sequence[int] = (0,),
) -> Iterator[Arrival]:
    """Independent arrivals at a rate that may change; `highest` bounds it."""
    rng = random.Random(f"{seed} {model}")
    at = 0.0
    while (at := at + rng.expovariate(highest)) <= until:
        if rng.random() * highest <= rate(at):
            yield Arrival(at, model, size(rng), rng.choice(priorities) if len(priorities) > 1 else priorities[0])
