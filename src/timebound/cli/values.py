"""How the values of flags are read, and what is said if they cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from timebound.config import SIZE, Form, seconds, whole


def _reader(form: Form) -> Callable[[str], Any]:
    """What argparse calls to read a value of this form."""

    def read(text: str) -> Any:
        try:
            return form.read(text)
        except (ValueError, KeyError, AttributeError):
            raise argparse.ArgumentTypeError(f"{text!r} must be {form.wanted}") from None

    return read


def _span(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    return read_time(low), read_time(high or low)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _share(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


read_time = _reader(seconds(0.0, 86_400.0))
read_span = _reader(Form(_span, "the shortest and the longest pause, such as 2-5", lambda span: span[0] <= span[1]))
read_whole = _reader(whole(1, 10**9))
read_wholes = _reader(Form(lambda text: [read_whole(part) for part in text.split(",")], "whole numbers"))
read_size = _reader(SIZE)
read_count = _reader(whole(0, 10**9))
read_number = _reader(Form(float, "a number above 0", lambda number: 0 < number < 1e9))
read_part = _reader(Form(_share, "a share below 1, such as 0.99 or 99%", lambda share: 0 <= share < 1))
read_share = _reader(Form(_share, "a share from 0 to 1, such as 0.99 or 99%", lambda share: 0 <= share <= 1))
read_rates = _reader(
    Form(_numbers, "requests/s above zero, such as 50 or 20,40,80", lambda rates: all(0 < rate < 1e9 for rate in rates))
)
