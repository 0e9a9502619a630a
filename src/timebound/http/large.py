"""Requests whose bodies are too heavy for the event loop: they wait until they have been looked at elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol, TypeAlias

from timebound.admission import Client, Held
from timebound.admission.held import SMALL
from timebound.admission.peers import peer_of
from timebound.clock import Clock
from timebound.errors import DeadlineMissed, Refusal, RequestError
from timebound.http.headers import timeout_s
from timebound.http.routes import Route
from timebound.http.surfaces.base import Read
from timebound.reading import Done, Looked, Reading, is_heavy

_KEPT_FREE, _MOST_KEPT_FREE_S = 0.1, 0.02
"""Of a request's time, to tell it that this time is up."""


Start: TypeAlias = Callable[[Done], Callable[[], None]]
"""Has a body looked at; what it returns is called when nobody wants to know any more."""


class Waits(Protocol):
    """A request that was taken in."""

    route: Route
    arrived: float
    address: str
    client: Client | None
    on_close: Callable[[], None] | None

    def refuse(self, error: RequestError) -> None: ...


class Large:
    """Has bodies looked at; the answer comes in time whatever becomes of that."""

    def __init__(
        self,
        reading: Reading,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        cap_s: float,
        *,
        held: Held | None = None,
        max_body: int = 10_000_000,
    ) -> None:
        self._reading = reading
        self._held = held
        self._max_body = max_body
        self._loop = loop
        self._clock = clock
        self._cap_s = cap_s

    def look(
        self,
        taken: Waits,
        headers: Collection[tuple[bytes, bytes]],
        body: bytes,
        go_on: Callable[[Looked | Read], None],
    ) -> bool:
        """Whether this body is looked at elsewhere; then `go_on` is called, unless the request is refused or left."""
        start = self._start(taken.route, headers, body)
        if start is None:
            return False
        limit_s = timeout_s(headers, min(taken.route.deadline_s, self._cap_s), self._cap_s)
        until = taken.arrived + limit_s - min(_KEPT_FREE * limit_s, _MOST_KEPT_FREE_S)
        sender = peer_of(taken.address) if taken.client is None else taken.client.name
        self._wait(taken, partial(start, sender=sender, until=until), until, go_on)
        return True

    def _start(self, route: Route, headers: Collection[tuple[bytes, bytes]], body: bytes) -> Callable[..., Any] | None:
        if route.apart is not None:
            errand = route.apart.elsewhere(dict(headers), body, self._max_body)
            if errand is not None:
                return partial(self._reading.read, errand, body)
        needs_print = route.identity.is_by_content or any(name == b"idempotency-key" for name, _ in headers)
        if not route.is_whole or not is_heavy(body, route.info, needs_print=needs_print):
            return None
        return partial(self._reading.look, route.info, body, needs_print=needs_print)

    def _wait(
        self,
        taken: Waits,
        start: Start,
        until: float,
        go_on: Callable[[Looked | Read], None],
    ) -> None:
        def done(looked: Looked | bytes | RequestError) -> None:
            timer.cancel()
            if isinstance(looked, RequestError):
                taken.refuse(looked)
            elif not isinstance(looked, bytes):
                go_on(looked)
            elif (read := self._held_read(looked)) is not None:
                go_on(read)
            else:
                detail = "too many large bodies are in memory now; send this one again a little later"
                taken.refuse(Refusal(detail, code="memory_full", retry_after_s=1))

        def close() -> None:
            timer.cancel()
            forget()
            if on_close is not None:
                on_close()

        forget = start(done)
        on_close, taken.on_close = taken.on_close, close
        over = DeadlineMissed("the deadline came while the body was read")
        timer = self._loop.call_later(max(0.0, until - self._clock.now()), taken.refuse, over)

    def _held_read(self, said: bytes) -> Read | None:
        """What a reader said, counted: unpacked it may be a thousand times what came. None without room for it."""
        hold: Any = None
        if self._held is not None and len(said) > SMALL:
            hold = self._held.hold()
            if not hold.reach(len(said)):
                return None
        return Read(said, hold)
