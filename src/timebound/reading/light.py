"""Which bodies may be looked at on the event loop."""

from __future__ import annotations

from timebound.store.fingerprint import has_tiny_numbers
from timebound.types import Body, ModelInfo

LIGHT = 1_500
"""Bytes of a body that nobody need look at before it is read: it takes less than a millisecond whatever is in it."""
_LIGHT_TO_PRINT, _LIGHT_TO_SEE, _LIGHT_TEXT = 16_000, 64_000, 256_000
"""The same if it holds no numbers that take long: with a fingerprint to make; without; and if it has few values."""
_FEW_VALUES = 500


def is_heavy(body: bytes, info: ModelInfo, *, needs_print: bool) -> bool:
    """Whether reading this body might cost the event loop more than a millisecond."""
    if info.body is not Body.JSON:
        return needs_print and len(body) > _LIGHT_TEXT
    return is_heavy_json(body, _LIGHT_TO_PRINT if needs_print or info.key else _LIGHT_TO_SEE)


def is_heavy_json(body: bytes, light: int = _LIGHT_TO_SEE) -> bool:
    """Whether reading this as JSON might take more than a millisecond; `light` bytes never do, but for some numbers."""
    size = len(body)
    if size > _LIGHT_TEXT or has_tiny_numbers(body):
        return True
    if size <= light:
        return False
    at = 0
    for _ in range(_FEW_VALUES):  # a picture in a text has few commas, and a search for one takes a microsecond
        at = body.find(b",", at) + 1
        if not at:
            return False
    return True
