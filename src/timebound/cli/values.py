"""How the values of flags are read, and what is said if they cannot be."""

from __future__ import annotations

import argparse

from timebound.config import seconds


def read_time(text: str) -> float:
    """A length of time, in seconds."""
    form = seconds(0.0, 86_400.0)
    try:
        return float(form.read(text))
    except (ValueError, KeyError, AttributeError):
        raise argparse.ArgumentTypeError(f"{text!r} must be {form.wanted}") from None


def read_whole(text: str, low: int = 1) -> int:
    """A whole number."""
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} on")
    return int(text)


def read_count(text: str) -> int:
    """A whole number, zero included."""
    return read_whole(text, 0)


def read_wholes(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    return [read_whole(part) for part in text.split(",")]


def read_rates(text: str) -> list[float]:
    """Requests per second, separated by commas."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} must be requests/s above zero, such as 50 or 20,40,80")
    return rates


def read_span(text: str) -> tuple[float, float]:
    """Two lengths of time, such as 2-5."""
    low, _, high = text.partition("-")
    span = (read_time(low), read_time(high or low))
    if span[0] > span[1]:
        raise argparse.ArgumentTypeError(f"{text!r} must be the shortest and the longest pause, such as 2-5")
    return span
