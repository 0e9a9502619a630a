"""Do many of a model's requests get less than a full answer for want of time? Then the full ones are no fair sample."""

from __future__ import annotations

_REMEMBERED = 1 - 1 / 200
"""Of what is known, at each request."""
_MOST = 0.02
_OTHER_REASONS = ("member_failed", "removed", "too_long", "crashes_worker")
"""Why an answer is less than full, other than for want of time."""


class Shortage:
    """The share of the last some hundred requests."""

    __slots__ = ("_share",)

    def __init__(self) -> None:
        self._share = 0.0

    def add(self, is_short: bool) -> None:
        """Count a request: whether time was too short for its full answer."""
        self._share = self._share * _REMEMBERED + (1 - _REMEMBERED) * is_short

    def full(self, count: int) -> None:
        """Count so many full answers."""
        self._share *= _REMEMBERED**count

    def less_than_full(self, reason: str) -> None:
        """Count an answer that was partial or a fallback."""
        self.add(reason not in _OTHER_REASONS)

    @property
    def is_now(self) -> bool:
        """Whether there are too many of them."""
        return self._share > _MOST
