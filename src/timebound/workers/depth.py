"""How deep JSON is nested, for a body that was too much for the code that read it."""

from __future__ import annotations

import re

MAX_DEPTH = 100
"""Levels of nesting that a model's code can be expected to follow; Python's own functions call themselves per level."""

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.S)


def is_too_deep(body: bytes | memoryview) -> bool:
    """Whether a JSON body is nested deeper than `MAX_DEPTH`. Slow."""
    depth = 0
    for character in _TEXTS.sub(b"", body):
        if character in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif character in b"]}":
            depth -= 1
    return False
