"""What autoscalers would do with a server's recorded `load_ratio`: one rule, and the clocks of three of them.

The rule is the same everywhere: desired = ceil(current x load_ratio / 0.7). Kubernetes' autoscaler asks every 15 s and
does nothing within a tenth of the target. Target tracking on AWS has means over whole minutes: three above the target
scale out, fifteen below nine tenths of it scale in. Ray asks our policy again and again, hears of replicas every two
seconds, and does what was wanted for 3 s (more) or 120 s (fewer): what docs/ray.md says to set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, isinf
from statistics import fmean
from typing import Any

from timebound.ray.policy import policy

TARGET = 0.7
HPA_PERIOD_S = 15
_HPA_TOLERANCE = 0.1
_MINUTE_S = 60
_MINUTES_OUT, _MINUTES_IN = 3, 15
_SLACK_IN = 0.9
_LONGEST_S = 1800
_RAY_HEARS_S, _RAY_UP_S, _RAY_DOWN_S = 2, 3, 120


@dataclass(frozen=True)
class Recorded:
    """The mean `load_ratio` of so many servers, second by second; after the last one it stays as it was lately."""

    replicas: int
    ratios: Sequence[float]

    def at(self, second: int, replicas: int) -> float:
        """What it would have been with another number of servers for the same requests."""
        known = self.ratios[second] if second < len(self.ratios) else fmean(self.ratios[-5:])
        return known * self.replicas / replicas


def desired(current: int, load_ratio: float) -> int:
    """How many servers the rule asks for; one at least."""
    return max(1, ceil(round(current * load_ratio / TARGET, 6)))


def rule_says_more_s(recorded: Recorded) -> float:
    """The first second in which the rule asks for more servers."""
    current = recorded.replicas
    seconds = range(len(recorded.ratios))
    return next((second for second in seconds if desired(current, recorded.at(second, current)) > current), inf)


def flaps(recorded: Recorded) -> int:
    """How often servers would be taken away, if the rule were obeyed every second, without any patience."""
    current, found = recorded.replicas, 0
    for second in range(len(recorded.ratios)):
        wanted = desired(current, recorded.at(second, current))
        found += wanted < current
        current = wanted
    return found


def hpa(recorded: Recorded, first_s: int, seconds: int) -> list[int]:
    """The servers that Kubernetes would run in each second, if it asks at `first_s` for the first time."""
    current, run = recorded.replicas, []
    for second in range(seconds):
        ratio = recorded.at(second, current)
        if second >= first_s and (second - first_s) % HPA_PERIOD_S == 0 and abs(ratio / TARGET - 1) > _HPA_TOLERANCE:
            current = desired(current, ratio)
        run.append(current)
    return run


def hpa_more_s(recorded: Recorded) -> float:
    """When Kubernetes would start more servers, if it happens to ask at the worst time."""
    longest = len(recorded.ratios) + 2 * HPA_PERIOD_S
    runs = [hpa(recorded, first_s, longest) for first_s in range(HPA_PERIOD_S)]
    return max(_first(run, lambda servers: servers > recorded.replicas) for run in runs)


def tracking(recorded: Recorded, seconds: int) -> list[int]:
    """The servers that target tracking would run in each second."""
    current, run, means = recorded.replicas, [], [TARGET]
    for second in range(seconds):
        if second and second % _MINUTE_S == 0:
            means.append(fmean(recorded.at(past, current) for past in range(second - _MINUTE_S, second)))
            is_high = len(means) > _MINUTES_OUT and min(means[-_MINUTES_OUT:]) > TARGET
            is_low = len(means) > _MINUTES_IN and max(means[-_MINUTES_IN:]) < _SLACK_IN * TARGET
            if is_high or is_low:
                current, means = desired(current, means[-1]), [TARGET]
        run.append(current)
    return run


def tracking_more_s(recorded: Recorded) -> float:
    """When target tracking would start more servers."""
    return _first(tracking(recorded, _LONGEST_S), lambda servers: servers > recorded.replicas)


@dataclass(frozen=True)
class _Told:
    value: float


@dataclass
class _Context:
    """What Ray tells the policy."""

    current_num_replicas: int
    target_num_replicas: int
    current_time: float | None
    policy_state: dict[str, Any]
    raw_metrics: dict[str, dict[int, list[_Told]]]


def ray(recorded: Recorded, seconds: int) -> list[int]:
    """The replicas that Ray would decide for in each second by `timebound.ray:policy`."""
    state: dict[str, Any] = {}
    current, run, told = recorded.replicas, [], 0.0
    wish, since = current, 0
    for second in range(seconds):
        if second % _RAY_HEARS_S == 0:
            told = recorded.at(second, current)
        ratios = {"load_ratio": {replica: [_Told(told)] for replica in range(current)}}
        wanted, state = policy(_Context(current, current, float(second), state, ratios))
        if (wanted > current) - (wanted < current) != (wish > current) - (wish < current):
            since = second
        wish = wanted
        if wish != current and second - since >= (_RAY_UP_S if wish > current else _RAY_DOWN_S):
            current, wish = wanted, wanted
        run.append(current)
    return run


def ray_more_s(recorded: Recorded) -> float:
    """When Ray would start more replicas."""
    return _first(ray(recorded, _LONGEST_S), lambda replicas: replicas > recorded.replicas)


def downs(run: Sequence[int]) -> int:
    """How often a run has fewer servers than a second before."""
    return sum(after < before for before, after in pairwise(run))


def all_flaps(recorded: Recorded) -> int:
    """Of the bare rule, of Kubernetes at any phase, and of target tracking and Ray over half an hour of the same."""
    seconds = len(recorded.ratios)
    asked = [downs(hpa(recorded, first_s, seconds)) for first_s in range(HPA_PERIOD_S)]
    long = downs(tracking(recorded, _LONGEST_S)) + downs(ray(recorded, _LONGEST_S))
    return flaps(recorded) + sum(asked) + long


def _first(run: Sequence[int], is_it: Callable[[int], bool]) -> float:
    return next((second for second, servers in enumerate(run) if is_it(servers)), inf)


def as_figure(seconds: float) -> float:
    """As JSON has it: a number that is beyond every bar for what never happened."""
    return 1e9 if isinf(seconds) else seconds
