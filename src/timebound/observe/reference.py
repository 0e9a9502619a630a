"""What a stream of values is usually like, as it is kept; what makes one and compares with it is in `detector.py`."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

LEAST = 5_000
"""Values that make a reference."""


class Reference(msgspec.Struct, frozen=True):
    """What values are usually like: bins and their shares."""

    shares: list[float]
    edges: list[float] = []
    """Of numbers: the largest value of each bin but the last."""
    values: list[float] = []
    """Of numbers: the mean of each bin, in standard deviations from the mean of all."""
    labels: list[str] = []
    """Of labels: those with a bin of their own, as `mark` writes them; then come rarer and new ones."""
    rarer: list[str] = []
    mean: float = 0.0
    sd: float = 0.0
    count: int = 0


def mark(label: str) -> str:
    """What a reference knows of a label: enough to tell it from others, and not what it says."""
    return blake2b(label.encode(), digest_size=6).hexdigest()
