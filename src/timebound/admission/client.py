"""One holder of an API key: how often it may ask, how much at once, what, and how important it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from timebound.errors import Refusal, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a key allows. None means no bound."""

    name: str
    rate: float | None = None
    """Requests per second, in the long run."""
    burst: float | None = None
    """Requests at once after a pause; the requests of one second unless given."""
    concurrent: int | None = None
    """Requests in work at the same time."""
    priority: int = 0
    """Of its requests; they may ask for less, not for more."""
    models: frozenset[str] | None = None
    """The models it may ask."""


class Client:
    """Counts what the holder of a key does. Times are seconds of the monotonic clock."""

    __slots__ = ("_burst", "_filled_at", "_tokens", "in_work", "terms")

    def __init__(self, terms: Terms) -> None:
        self.adopt(terms)
        self.in_work = 0
        self._tokens = self._burst
        self._filled_at = 0.0

    @property
    def name(self) -> str:
        """Whose key it is; the first part of its requests' keys."""
        return self.terms.name

    def adopt(self, terms: Terms) -> None:
        """The keys file has changed; what was counted goes on."""
        self.terms = terms
        self._burst = max(1.0, terms.burst or terms.rate or 1.0)

    def may_ask(self, model: str) -> bool:
        """Whether this key is for this model."""
        return self.terms.models is None or model in self.terms.models

    def check_model(self, model: str) -> None:
        """Raise `RequestError` if this key is not for this model; its name is not told to who knows only its path."""
        if not self.may_ask(model):
            raise RequestError(f"the key of {self.name!r} is not for this model", code="forbidden")

    def count(self, now: float, requests: int = 1) -> None:
        """So many more requests; raises `Refusal` with the time to come back if it is one too many for the rate."""
        rate = self.terms.rate
        if rate is None:
            return
        self._tokens = min(self._burst, self._tokens + rate * max(0.0, now - self._filled_at))
        self._filled_at = max(self._filled_at, now)  # after a stall requests may count as come before the last one
        if self._tokens < requests:
            raise Refusal(
                f"this key may send {rate:g} requests per second",
                code="rate_limited",
                retry_after_s=(requests - self._tokens) / rate,
            )
        self._tokens -= requests

    def enter(self) -> Callable[[], None]:
        """One more request is in work, until what is returned is called; raises `Refusal` if there are too many."""
        most = self.terms.concurrent
        if most is not None and self.in_work >= most:
            raise Refusal(f"this key has {most} requests in work already", code="client_busy", retry_after_s=1)
        self.in_work += 1
        is_out = False

        def leave() -> None:
            nonlocal is_out
            if not is_out:
                is_out = True
                self.in_work -= 1

        return leave

    def priority(self, asked: int | None) -> int:
        """The priority of a request that asks for this one."""
        return self.terms.priority if asked is None else min(asked, self.terms.priority)

    def own(self, key: str) -> str:
        """A request's key among those of all API keys: nobody reaches another's results by it. Names have no colon."""
        return f"{self.name}:{key}"
