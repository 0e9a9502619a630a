"""The autoscaling policy, with the windows of real replicas and the delays of Ray's autoscaler around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from timebound.ray.policy import policy, wanted

STARTS_S = 3.0
"""From Ray's decision to a new replica's first request."""


@dataclass
class Point:
    value: float


@dataclass
class Context:
    current_num_replicas: int
    target_num_replicas: int
    current_time: float | None
    raw_metrics: dict[str, dict[int, list[Point]]]
    policy_state: dict[str, Any]


@dataclass
class Autoscaler:
    """Ray's loop, once a second: replicas tell, the policy wants, and what it wants for long enough is done."""

    most: int
    upscale_delay_s: float = 3.0
    downscale_delay_s: float = 20.0
    push_every_s: int = 2
    running: int = 1
    target: int = 1
    seen: list[int] = field(default_factory=list)
    _windows: dict[int, deque[float]] = field(default_factory=dict)
    _told: dict[int, float] = field(default_factory=dict)
    _state: dict[str, Any] = field(default_factory=dict)
    _wanted_since: tuple[int, float] = (0, 0.0)
    _ready_at: float = 0.0
    _now: int = 0

    def run(self, seconds: int, load: Callable[[int], float]) -> None:
        """`load` says how much work arrives in a second, in replicas; it is shared equally."""
        for _ in range(seconds):
            self._now += 1
            if self.target != self.running and (self.target < self.running or self._now >= self._ready_at):
                self.running = self.target
            for replica in range(self.running):
                window = self._windows.setdefault(replica, deque(maxlen=10))
                window.append(load(self._now) / self.running)
                if self._now % self.push_every_s == 0:
                    self._told[replica] = sum(window) / len(window)
            for gone in [replica for replica in self._windows if replica >= self.running]:
                del self._windows[gone], self._told[gone]
            self._decide()
            self.seen.append(self.running)

    def _decide(self) -> None:
        told = {replica: [Point(value)] for replica, value in self._told.items()}
        context = Context(self.running, self.target, float(self._now), {"load_ratio": told}, self._state)
        want, self._state = policy(context)
        want = min(self.most, max(1, want))
        direction = (want > self.target) - (want < self.target)
        if direction != self._wanted_since[0]:
            self._wanted_since = (direction, self._now)
        delay_s = self.upscale_delay_s if direction > 0 else self.downscale_delay_s
        if direction and self._now - self._wanted_since[1] >= delay_s:
            self.target, self._ready_at = want, self._now + STARTS_S


def test_one_replica_with_half_too_much_becomes_two_within_15_seconds() -> None:
    ray = Autoscaler(most=2)
    ray.run(30, lambda now: 0.4)
    assert set(ray.seen) == {1}
    ray.run(60, lambda now: 1.5)
    assert ray.seen[30:].index(2) < 15
    assert set(ray.seen[45:]) == {2}


def test_two_replicas_at_three_quarters_stay_two() -> None:
    ray = Autoscaler(most=2, running=2, target=2)
    ray.run(60, lambda now: 1.5)
    assert set(ray.seen) == {2}


def test_load_around_the_goal_moves_nothing() -> None:
    ray = Autoscaler(most=4, running=2, target=2)
    ray.run(120, lambda now: 1.3 + (0.15 if now % 20 < 10 else -0.15))
    assert set(ray.seen[:110]) <= {2, 3}
    assert sum(before != after for before, after in zip(ray.seen, ray.seen[1:], strict=False)) <= 1


def test_what_is_enough_is_not_exceeded_while_windows_still_tell_of_the_time_before() -> None:
    ray = Autoscaler(most=10)
    ray.run(90, lambda now: 1.3)
    assert max(ray.seen) == 2


def test_replicas_that_have_little_to_do_are_taken_away_after_rays_delay() -> None:
    ray = Autoscaler(most=4, running=4, target=4)
    ray.run(90, lambda now: 0.3)
    assert ray.seen[-1] == 1
    assert set(ray.seen[:20]) == {4}


def test_before_anything_is_told_nothing_changes() -> None:
    assert policy(Context(3, 3, 5.0, {}, {}))[0] == 3


def test_a_replica_that_has_told_nothing_yet_counts_as_the_others_do() -> None:
    ratios = {"load_ratio": {1: [Point(0.2), Point(0.8)], 2: []}}
    assert policy(Context(2, 2, 5.0, ratios, {}))[0] == 3


@pytest.mark.parametrize(
    ("load", "running", "expected"),
    [(1.5, 1, 3), (1.5, 2, 3), (1.4, 2, 2), (1.3, 2, 2), (1.3, 3, 3), (1.2, 3, 2), (0.0, 3, 1), (7.0, 10, 10)],
)
def test_how_many_there_should_be(load: float, running: int, expected: int) -> None:
    assert wanted(load, running, running) == expected
