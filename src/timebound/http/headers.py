"""What a request says in its headers, in every protocol: its limit, its key, its priority, what it wants besides.

A request without any of these is read without a call into this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from timebound.errors import RequestError
from timebound.requests.identity import MAX_KEY


def read_key(value: bytes) -> str | None:
    """The value of `Idempotency-Key`."""
    given = value.strip()
    if not given:
        return None
    try:
        key = given.decode()  # as clients mean it: UTF-8 where it is that, as in a body or a URL
    except UnicodeDecodeError:
        key = given.decode("latin-1")
    if len(key) > MAX_KEY:
        raise _bad_header("idempotency-key", f"has more than {MAX_KEY} characters")
    return key


def read_priority(value: bytes) -> int:
    """The value of `Timebound-Priority`."""
    if len(value) > 3 or not value.strip().removeprefix(b"-").isdigit():
        raise _bad_header("timebound-priority", "must be a whole number, such as 1; higher goes first")
    return int(value)


def read_votes(value: bytes) -> bool:
    """The value of `Timebound-Details`."""
    if value.strip().lower() != b"votes":
        raise _bad_header("timebound-details", "must be: votes")
    return True


WISHES = frozenset((b"idempotency-key", b"timebound-priority", b"timebound-details"))


def read_wishes(fields: Mapping[bytes, bytes], priority: int | None) -> tuple[str | None, int | None, bool]:
    """The key, the priority (or the one given here) and whether votes are wanted; raises `RequestError`."""
    key, wants_votes = None, False
    if b"idempotency-key" in fields:
        key = read_key(fields[b"idempotency-key"])
    if b"timebound-priority" in fields:
        priority = read_priority(fields[b"timebound-priority"])
    if b"timebound-details" in fields:
        wants_votes = read_votes(fields[b"timebound-details"])
    return key, priority, wants_votes


def _bad_header(name: str, what: str) -> RequestError:
    return RequestError(f"{name} {what}", code="bad_header", field=name)


def _milliseconds(value: str) -> float:
    return float(value) * 1e-3


_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def _grpc(value: str) -> float:
    digits, unit = value[:-1], value[-1:]
    if not digits.isdecimal() or len(digits) > 8:
        raise ValueError(value)
    return int(digits) * _GRPC_UNITS[unit]


LIMITS: dict[bytes, tuple[Callable[[str], float], str]] = {
    b"timebound-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
    b"grpc-timeout": (_grpc, "digits and a unit of H, M, S, m, u, n, such as 250m"),
    b"x-request-timeout-seconds": (float, "seconds, such as 0.25"),
    b"x-envoy-expected-rq-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
}
"""Header, how to read its value in seconds, and what to say it should look like."""


def timeout_s(headers: Iterable[tuple[bytes, bytes]], default_s: float, cap_s: float) -> float:
    """Seconds this request may take: the smallest header, else `default_s`; never above the server's cap.

    A header may come several times, from several proxies on the way; names are in lower case.
    """
    smallest: float | None = None
    for name, value in headers:
        if name not in LIMITS:
            continue
        read, form = LIMITS[name]
        try:
            length = read(value.decode("ascii").strip())
        except (ValueError, KeyError, OverflowError):
            length = math.nan
        if not 0 < length < math.inf:
            raise _bad_header(name.decode(), f"must be {form}")
        smallest = length if smallest is None else min(smallest, length)
    return min(default_s if smallest is None else smallest, cap_s)
