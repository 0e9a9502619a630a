"""Which bodies may be looked at on the event loop."""

from __future__ import annotations

from timebound.store.fingerprint import has_tiny_numbers
from timebound.types import Body, ModelInfo

LIGHT = 1_500
"""Bytes of a body that nobody need look at before it is read: it takes less than a millisecond whatever is in it."""
_LIGHT_TO_PRINT, _LIGHT_TO_SEE, _LIGHT_TEXT = 16_000, 64_000, 256_000
"""The same if it holds no numbers that take long: with a fingerprint to make; without; and if it has few values."""
_FEW = 500
"""Of values; and of whatever makes a long text take longer to print."""


def is_heavy(body: bytes, info: ModelInfo, *, needs_print: bool) -> bool:
    """Whether reading this body might cost the event loop more than a millisecond."""
    if info.body is not Body.JSON:
        return needs_print and len(body) > _LIGHT_TEXT
    if not needs_print and not info.key:
        return is_heavy_json(body)
    is_long = _LIGHT_TO_SEE < len(body) <= _LIGHT_TEXT
    return (is_long and _is_laborious_to_print(body)) or is_heavy_json(body, _LIGHT_TO_PRINT)


def is_heavy_json(body: bytes, light: int = _LIGHT_TO_SEE) -> bool:
    """Whether reading this as JSON might take more than a millisecond; `light` bytes never do, but for some numbers."""
    size = len(body)
    if size > _LIGHT_TEXT or has_tiny_numbers(body):
        return True
    return size > light and _has_many(body, b",")


def _is_laborious_to_print(body: bytes) -> bool:
    """Whether there is too much of what takes long: escapes, put aside and back again, and what may be tiny numbers."""
    return _has_many(body, b"\\") or (_has_many(body, b"-") and (_has_many(body, b"e-") or _has_many(body, b"E-")))


def _has_many(body: bytes, what: bytes) -> bool:
    """Whether this comes often; a picture in a text has few commas, and a search for one takes a microsecond."""
    at = 0
    for _ in range(_FEW):
        at = body.find(what, at) + 1
        if not at:
            return False
    return True
