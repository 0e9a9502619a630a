"""What is kept free before deadlines follows how late the process really is, not its accidents."""

from __future__ import annotations

import pytest

from timebound.requests.margin import Margin


def test_the_start_value_holds_until_enough_was_seen() -> None:
    margin = Margin(0.010)
    for _ in range(100):
        margin.observe(0.050)
    assert margin.seconds == 0.010


def test_a_quick_process_keeps_little_free() -> None:
    margin = Margin(0.010)
    for _ in range(200):
        margin.observe(0.0001)
    assert margin.seconds == 0.005


def test_a_slow_process_keeps_more_free() -> None:
    margin = Margin(0.010)
    for number in range(200):
        margin.observe(0.020 if number % 20 == 0 else 0.0001)
    assert 0.020 < margin.seconds < 0.030


def test_a_few_accidents_change_nothing() -> None:
    margin = Margin(0.010)
    for number in range(1000):
        margin.observe(3.0 if number in (200, 500) else 0.001)
    assert margin.seconds == 0.005


def test_what_was_long_ago_is_forgotten() -> None:
    margin = Margin(0.010)
    for _ in range(200):
        margin.observe(0.050)
    for _ in range(2000):
        margin.observe(0.001)
    assert margin.seconds == 0.005


def test_there_is_a_limit() -> None:
    margin = Margin(0.010)
    for _ in range(200):
        margin.observe(5.0)
    assert margin.seconds == 0.100


def test_a_stall_counts_at_once_and_is_forgotten_by_and_by() -> None:
    margin = Margin(0.010)
    margin.woke(0.025, now=0.0)
    assert margin.seconds == pytest.approx(0.040)
    margin.woke(0.0, now=2.0)
    assert 0.019 < margin.seconds < 0.021
    margin.woke(0.0, now=20.0)
    assert margin.seconds == 0.010


def test_a_long_stall_keeps_no_more_free_than_the_limit() -> None:
    margin = Margin(0.010)
    margin.woke(5.0, now=0.0)
    assert margin.seconds == 0.100


def test_a_smaller_stall_does_not_hide_a_larger_one() -> None:
    margin = Margin(0.010)
    margin.woke(0.045, now=0.0)
    margin.woke(0.010, now=0.1)
    assert margin.seconds > 0.075


def test_a_busy_process_that_is_woken_a_little_late_does_not_stall() -> None:
    margin = Margin(0.005)
    for beat in range(100):
        margin.woke(0.005, now=0.02 * beat)
    assert margin.seconds == 0.005
