"""The time limit a request brings along: the smallest of those named in its headers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from timebound.errors import RequestError

_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def _milliseconds(value: str) -> float:
    return float(value) * 1e-3


def _grpc(value: str) -> float:
    digits, unit = value[:-1], value[-1:]
    if not digits.isdecimal() or len(digits) > 8:
        raise ValueError(value)
    return int(digits) * _GRPC_UNITS[unit]


# Header, how to read its value in seconds, and what to say it should look like.
_HEADERS: dict[bytes, tuple[Callable[[str], float], str]] = {
    b"timebound-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
    b"grpc-timeout": (_grpc, "digits and a unit of H, M, S, m, u, n, such as 250m"),
    b"x-request-timeout-seconds": (float, "seconds, such as 0.25"),
    b"x-envoy-expected-rq-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
}


def timeout_s(headers: Iterable[tuple[bytes, bytes]], default_s: float, cap_s: float) -> float:
    """Seconds this request may take: the smallest header, else the model's own; never above the server's cap.

    A header may come several times, from several proxies on the way; names are in lower case.
    """
    smallest: float | None = None
    for name, value in headers:
        if name not in _HEADERS:
            continue
        read, form = _HEADERS[name]
        try:
            length = read(value.decode("ascii").strip())
        except (ValueError, KeyError, OverflowError):
            length = math.nan
        if not 0 < length < math.inf:
            raise RequestError(f"{name.decode()} must be {form}", code="bad_header", field=name.decode())
        smallest = length if smallest is None else min(smallest, length)
    return min(default_s if smallest is None else smallest, cap_s)
