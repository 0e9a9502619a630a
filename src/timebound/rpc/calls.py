"""How every call by gRPC is answered or refused, and how its message is read within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from timebound.admission import Held, Hold
from timebound.admission.held import SMALL
from timebound.errors import Refusal, RequestError
from timebound.rpc.callers import Callers
from timebound.rpc.schema import message
from timebound.rpc.statuses import said
from timebound.rpc.wire import LIGHT, packing_of, unpacked_if_light

log = logging.getLogger("timebound.rpc")

Work = Callable[[Any, Any], Any]
"""Takes a request and its `Caller` (None where nobody needs to say who it is); returns the answer, or awaits it."""

_SOON_S = 0.05
"""A small message comes with its call. One that is not here by then counts as one of the largest until it is."""
_AWAITED = 0.75
"""Of the memory for large bodies: as much as messages that are awaited may stand for."""
_FEW_STREAMS, _MOST_STREAMS = 16, 256


async def refuse(context: Any, error: RequestError, request_id: str = "") -> None:
    """End a call with an error."""
    status, text, metadata = said(error, request_id)
    await context.abort(status, text, metadata)


def broken() -> RequestError:
    """What is told of a mistake of the server's own."""
    return RequestError("something broke in the server; its log has the details")


def decoded(kind: Any, body: bytes) -> Any:
    """A small message of this kind; raises `RequestError`."""
    packing = packing_of(body)
    plain = body if not packing else unpacked_if_light(body, packing)
    if plain is None or len(plain) > LIGHT:
        detail = f"the message is over {LIGHT} bytes, which no {kind.DESCRIPTOR.name} needs"
        raise RequestError(detail, code="body_too_large")
    try:
        return kind.FromString(plain)
    except DecodeError:
        raise RequestError(f"the message is no {kind.DESCRIPTOR.name}", code="bad_input") from None


def unary(kind: str, callers: Callers | None, work: Work, reading: Reading) -> Any:
    """A method that takes one small message and gives another; without `callers` anybody may call it.

    It reads its message itself: who may not call need not be heard out, and what does not come is counted.
    """
    request_kind = message(kind)

    async def call(unread: Any, context: Any) -> bytes:
        try:
            caller = None
            if callers is not None:
                caller = callers.of(context)
                callers.count(caller)
            body, _ = await reading.read(context)
            answer = work(decoded(request_kind, body), caller)
            if isinstance(answer, Awaitable):
                answer = await answer
            return bytes(answer.SerializeToString())
        except RequestError as error:
            refusal = error
        except Exception:
            log.exception("a call broke")
            refusal = broken()
        await refuse(context, refusal)
        return b""

    return grpc.stream_unary_rpc_method_handler(call)


class Reading:
    """Reads messages of any size, counted in the memory that clients of all fronts share."""

    def __init__(self, held: Held, *, max_body: int, timeout_s: float) -> None:
        self.held = held
        self.max_body = max_body
        self.timeout_s = timeout_s
        self.awaited = 0
        """Messages that did not come at once and are counted as the largest."""

    @property
    def most_streams(self) -> int:
        """Streams that may be open: each may have a message in memory that is not whole, and nobody sees how large."""
        return max(_FEW_STREAMS, min(_MOST_STREAMS, self.held.limit // self.max_body))

    def may_await(self) -> bool:
        """Whether one more message may be awaited: they leave memory to others, who have sent what they hold."""
        return not self.awaited or (self.awaited + 1) * self.max_body <= _AWAITED * self.held.limit

    async def read(self, context: Any) -> tuple[bytes, Hold | None]:
        """The only message of a call, and what it holds; raises `RequestError` if it does not come or has no room."""
        body, hold = await self.next(context)
        if body is None:
            raise RequestError("the call has no message", code="empty_body")
        return body, hold

    async def next(self, context: Any) -> tuple[bytes | None, Hold | None]:
        """The next message of a call, None if there is none; raises as `read`."""
        wait = _Wait(self)
        try:
            body = await context.read()
        except asyncio.CancelledError:
            wait.let_go()
            if wait.refusal is None:
                raise
            raise wait.refusal from None
        finally:
            wait.end()
        return (None, None) if body is grpc.aio.EOF else (body, self.hold(body, wait.hold))

    def hold(self, body: bytes, hold: Hold | None = None) -> Hold | None:
        """What a message holds that is here; raises `Refusal` if there is no room for it."""
        if len(body) <= SMALL:
            return None
        hold = hold or self.held.hold()
        if not hold.reach(len(body)):
            raise no_room()
        return hold


class _Wait:
    """Watches over a message that is awaited: whether there is room for it, and whether it comes in time."""

    __slots__ = ("_is_counted", "_reading", "_task", "_timer", "hold", "refusal")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._is_counted = False
        self.hold: Hold | None = None
        self.refusal: RequestError | None = None
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(min(_SOON_S, reading.timeout_s), self._count)

    def _count(self) -> None:
        reading, hold = self._reading, self._reading.held.hold()
        if not reading.may_await() or not hold.reach(reading.max_body):
            self._refuse(no_room())
            return
        self.hold = hold
        reading.awaited += 1
        self._is_counted = True
        late = RequestError(f"the message did not arrive within {reading.timeout_s:g} s", code="slow_client")
        self._timer = asyncio.get_running_loop().call_later(reading.timeout_s, self._refuse, late)

    def _refuse(self, error: RequestError) -> None:
        self.refusal = error
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        self._timer.cancel()
        self._count_out()
        if self.refusal is not None and self._task is not None:
            self._task.uncancel()

    def let_go(self) -> None:
        """Hold nothing any more, now: an error keeps what it passes, this too, until somebody looks for garbage."""
        self._count_out()
        self.hold = None

    def _count_out(self) -> None:
        self._reading.awaited -= self._is_counted
        self._is_counted = False


def no_room() -> Refusal:
    """What a message is told for which there is no memory."""
    detail = "too many large bodies are in memory now; send this one again a little later"
    return Refusal(detail, code="memory_full", retry_after_s=1)
